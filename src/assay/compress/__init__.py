"""Make models smaller and cheaper: number formats, codes, factors, sparsity."""
