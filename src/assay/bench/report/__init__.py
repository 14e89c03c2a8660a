"""The page that a person gets from a run: verdict, claim, arms, plots, failures and how to repeat it, in one file.

`write_report` turns a run folder into its ``report.html``; `render` puts several runs on one page. The page needs no
network and has no scripts. The parts: `load` reads and checks the folder, `numbers` writes figures as people write
them, `plots` draws, `page` fills the templates.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError
from assay._core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the ``result.json`` and ``cases.parquet`` of a run, whole or not at all.

    Parameters
    ----------
    folder : Path
        A run folder; its parts are read from the subfolders that its result names.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    InputError
        The folder is not a finished run, or a file in it is not what a run writes.

    Examples
    --------
    >>> write_report(Path("runs/judge-rank"))  # doctest: +SKIP
    PosixPath('runs/judge-rank/report.html')
    """
    target = Path(folder) / "report.html"
    text = render([folder])
    write_text(target, text)
    return target


def render(folders: Sequence[Path]) -> str:
    """One HTML page about one run, or about several: then a table of their verdicts comes first.

    Parameters
    ----------
    folders : sequence of Path
        Run folders, in the order in which they are shown.

    Raises
    ------
    InputError
        No folder is given, or one is not a finished run.

    Examples
    --------
    >>> page = render([Path("runs/judge-rank"), Path("runs/bridge")])  # doctest: +SKIP
    """
    from assay.bench.report.load import read_run
    from assay.bench.report.page import render_runs

    if not folders:
        raise InputError("a report needs at least one run folder; give the folder that assay try wrote")
    return render_runs([read_run(Path(folder)) for folder in folders])
