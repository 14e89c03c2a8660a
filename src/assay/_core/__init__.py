"""Ground floor: input errors, optional imports, tables, files, seeds, progress. Imports nothing of Assay above it."""
