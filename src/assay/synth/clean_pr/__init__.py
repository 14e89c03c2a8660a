"""Pull requests as validated search-and-replace edits to train on, and the applier for what a model answers.

Paper: Zhu et al., "Clean-PR: Pull Requests as a Training Signal for Repo-Level Code Editing", arXiv:2602.07457. The
block format follows the convention that it names; anchor ties, the target languages and the texts of the prompts are
our reading.
"""

from assay.synth.clean_pr.apply import ApplyResult, Note, apply_blocks, apply_to_folder
from assay.synth.clean_pr.building import build
from assay.synth.clean_pr.changes import REASONS, FileChange, PullRequest, Reject
from assay.synth.clean_pr.cleaning import Report, RoundTrip, clean, clean_one, roundtrip
from assay.synth.clean_pr.edits import Block, FileEdit
from assay.synth.clean_pr.filters import LANGUAGES, PRFilter
from assay.synth.clean_pr.form import Parsed, format_blocks, parse_blocks
from assay.synth.clean_pr.issues import find_references, link_issues
from assay.synth.clean_pr.make import diff_to_blocks
from assay.synth.clean_pr.negatives import mine_negatives, with_negatives
from assay.synth.clean_pr.patch import blocks_to_diff
from assay.synth.clean_pr.replay import Stats, read_records, replays, stats
from assay.synth.clean_pr.samples import to_samples
from assay.synth.clean_pr.solve import AgentlessEditor, Solution, evaluate_edits
from assay.synth.clean_pr.sources import from_jsonl, iter_prs, open_source

# fmt: off
__all__ = [
    "LANGUAGES", "REASONS", "AgentlessEditor", "ApplyResult", "Block", "FileChange", "FileEdit", "Note",
    "PRFilter", "Parsed", "PullRequest", "Reject", "Report", "RoundTrip", "Solution", "Stats", "apply_blocks",
    "apply_to_folder", "blocks_to_diff", "build", "clean", "clean_one", "diff_to_blocks", "evaluate_edits",
    "find_references", "format_blocks", "from_jsonl", "iter_prs", "link_issues", "mine_negatives",
    "open_source", "parse_blocks", "read_records", "replays", "roundtrip", "stats", "to_samples",
    "with_negatives",
]
# fmt: on
