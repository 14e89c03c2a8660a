"""Read and write tables people really have: CSV, TSV, JSON Lines, JSON and Parquet, gzipped or not.

Everything is checked at the door. An error names the file, the row (counted from 1, the header not counted)
and the column.
"""

from assay._core.tables.check import Kind, check_columns
from assay._core.tables.formats import FORMATS
from assay._core.tables.read import read_table
from assay._core.tables.write import write_table

__all__ = ["FORMATS", "Kind", "check_columns", "read_table", "write_table"]
