"""Make training data: relational databases, edits from pull requests."""
