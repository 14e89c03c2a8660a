"""Raw logs of ten systems, and short texts with their topics."""

from assay.datasets.entry import Entry

_LOG_FILES = "https://raw.githubusercontent.com/logpai/loghub/master"
_LOG_PAPER = (
    "Zhu, He, He, Liu, Lyu: Loghub: A Large Collection of System Log Datasets for AI-driven Log Analytics. ISSRE 2023"
)

#: SHA-256 and bytes of each system's log; in BGL and Thunderbird the first field of a line is its label.
_SYSTEMS = {
    "Apache": ("c7efa3eb686e3a96bd2f8f4457b2a7887e9cf2f3649327f1b4e87af841363ce8", 171_239),
    "BGL": ("2a819ea540909db682005c9cf948387a40729b5c2e9f19d430e29ce704825496", 317_150),
    "HDFS": ("7c967000980c086ed55fa6544ba4f05fe66d44622795e890c68caf8bbb635035", 287_848),
    "HPC": ("826e5957b461e65780a8bda5c186c2fcf90fd6c1863721ef9c1ccfa9ada86f88", 151_178),
    "Hadoop": ("9ecaeb807d50d5fb5a20982ea66f1c8d32545259a51ce7456c1ab78db0509732", 384_948),
    "Linux": ("b3e20bc1afe732ab1bf3ed1de4bf9c809e4194e02f7dea911d918e5342e8e173", 216_485),
    "OpenSSH": ("1e4912727fa88245113d41b16a0cd25ceadba7f931e1c406542885b91254264f", 225_216),
    "Spark": ("2e8b9a37fc5c238253e0b8e18a8bd5e489671def91767ae1192d28c8e1f95901", 196_268),
    "Thunderbird": ("903bbfa61c34d4803e4adcb0d726ff2eeb9a2e11971243269a2035fa6c3bbeb0", 325_192),
    "Zookeeper": ("e40e0af5ef9eb6e4097200f260b9d1f626b3676f861a432e87977242e75543d8", 279_891),
}

LOGS = tuple(
    Entry(
        name=f"loghub-{system.lower()}",
        title=f"2,000 raw lines of {system}'s log (Loghub)",
        kind="file",
        file=f"loghub/{system}_2k.log.gz",
        sha256=sha256,
        size=size,
        url=f"{_LOG_FILES}/{system}/{system}_2k.log",
        source="https://github.com/logpai/loghub",
        licence="free for research, as its authors state",
        citation=_LOG_PAPER,
        description="Consecutive lines as they were written, with the system's own headers and times"
        + ("; the first field is the label, - for normal." if system in ("BGL", "Thunderbird") else "."),
    )
    for system, (sha256, size) in _SYSTEMS.items()
)

_TEXT_PAPER = (
    "Yao, Yin, Li: Reliable Pseudo-labeling via Optimal Transport with Attention for Short Text Clustering. "
    "arXiv:2501.15194, 2025"
)

#: Name of the file, what it holds, SHA-256 and bytes.
_COLLECTIONS = {
    "agnews": (
        "4,000 news texts in 3 topics",
        "4d37d47264acbe5573cb10c4fb40df98945f480fede35e2ae1e5cf271e34ce69",
        667_979,
    ),
    "google_news_t": (
        "11,108 titles of news in 152 topics",
        "885189e898132f3ea3897b2110c8d8f5a6fd747ea3322aa96596586bf0000950",
        502_289,
    ),
    "search_snippets": (
        "4,000 snippets of web searches in 3 topics",
        "4729ee1d33fc48a8906ab807bcc203eaf8ff4be61c96d47dea8386d68bcf8889",
        573_714,
    ),
    "stackoverflow": (
        "20,000 titles of questions of programmers in 20 topics",
        "f52dbc4e49f9261670f56cf09596e89ffe15f7415d80b710a1ca18b931e5352b",
        1_085_396,
    ),
}

TEXTS = tuple(
    Entry(
        name=f"short-text-{name.replace('_', '-')}",
        title=title,
        kind="file",
        file=f"short_text/{name}.csv.gz",
        sha256=sha256,
        size=size,
        # A selection of columns of the files in AugData/ of the source: nothing to download as it is.
        source="https://github.com/YZH0905/POTA-STC",
        licence="that of the original corpus",
        citation=_TEXT_PAPER,
        description="Short texts with their true topic, as the papers on short text clustering use them.",
        columns={"label": "number of the topic", "text": "the text"},
    )
    for name, (title, sha256, size) in _COLLECTIONS.items()
)
