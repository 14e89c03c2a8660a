"""Pull requests as validated search-and-replace edits to train on, and the applier for what a model answers.

Paper: Zhu et al., "Clean-PR: Pull Requests as a Training Signal for Repo-Level Code Editing", arXiv:2602.07457. The
block format follows the convention that it names; anchor ties, the target languages and the texts of the prompts are
our reading.
"""
