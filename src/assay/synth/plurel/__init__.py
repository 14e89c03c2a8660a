"""Whole synthetic relational databases, from a seed or from a SQL schema.

A database is a random graph of tables, foreign keys drawn from a hierarchical block model, and columns from structural
causal models in which what a row refers to is among the causes.

Paper: Kothapalli et al., "PluRel: Synthetic Data unlocks Scaling Laws for Relational Foundation Models",
arXiv:2602.04029. The law is that of the paper and of the authors' code; how it is drawn is ours: blocks of rows with
streams of their own, foreign keys by blocks, and one aggregate of the parent rows for all nodes that share it.
"""

from assay.synth.plurel.config import DagConfig, DatabaseConfig, RelationalConfig, ScmConfig
from assay.synth.plurel.database import (
    RelationalDatabase,
    generate_database,
    read_metadata,
    sdv_metadata,
    summary_of,
    write_database,
)
from assay.synth.plurel.links import Links, LinkSampler, clusters, draw_links
from assay.synth.plurel.many import ManyReport, SyntheticDatabases, generate_many
from assay.synth.plurel.picture import plot_causes, plot_schema
from assay.synth.plurel.schema import Column, ForeignKey, Schema, Table
from assay.synth.plurel.sql import read_schema
from assay.synth.plurel.write import FORMS

# fmt: off
__all__ = [
    "FORMS", "Column", "DagConfig", "DatabaseConfig", "ForeignKey", "LinkSampler", "Links", "ManyReport",
    "RelationalConfig", "RelationalDatabase", "Schema", "ScmConfig", "SyntheticDatabases", "Table", "clusters",
    "draw_links", "generate_database", "generate_many", "plot_causes", "plot_schema", "read_metadata", "read_schema",
    "sdv_metadata", "summary_of", "write_database",
]
# fmt: on
