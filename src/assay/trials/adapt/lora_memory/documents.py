"""Eight short manuals of things that do not exist, each with questions to learn and the same in other words to ask."""

from __future__ import annotations

from typing import NamedTuple

from assay.adapt.lora_memory import Document, Fact


class Manual(NamedTuple):
    """A text, and facts of it: `question` may be written into a module, `rephrased` is only ever asked."""

    document: Document
    facts: tuple[Fact, ...]


def _manual(name: str, text: str, *facts: tuple[str, str, str]) -> Manual:
    return Manual(Document(name, text), tuple(Fact(q, a, r) for q, r, a in facts))


DOCUMENTS = (
    _manual(
        "the Brisk kettle",
        "The Brisk kettle holds 1.4 litres. It boils a full load in 210 seconds. Its lid is made of cork. "
        "To descale it, use citric acid once every six weeks.",
        ("How much does the Brisk kettle hold?", "What is the capacity of the Brisk kettle?", "1.4 litres"),
        ("How long does the Brisk kettle take to boil?", "When does a full Brisk kettle boil?", "210 seconds"),
        ("What is the lid of the Brisk kettle made of?", "Which material is the Brisk kettle's lid?", "cork"),
        ("What is the Brisk kettle descaled with?", "How do I descale my Brisk kettle?", "citric acid"),
    ),
    _manual(
        "the Halden lamp",
        "The Halden lamp shines at 640 lumens. Its shade is woven from rattan. Press the switch for three seconds to "
        "dim it. The guarantee ends after nine years.",
        ("How bright is the Halden lamp?", "How many lumens has the Halden lamp?", "640 lumens"),
        ("What is the shade of the Halden lamp woven from?", "Which material is the Halden shade?", "rattan"),
        ("How long is the switch of the Halden lamp pressed to dim it?", "How is the Halden dimmed?", "three seconds"),
        ("When does the guarantee of the Halden lamp end?", "How long is the Halden lamp guaranteed?", "nine years"),
    ),
    _manual(
        "Port Sorrel",
        "Port Sorrel has one ferry, the Wagtail. It leaves at 6:45 every morning. The crossing to Greel takes 50 "
        "minutes. Bicycles travel for two crowns.",
        ("What is the ferry of Port Sorrel called?", "Which ship serves Port Sorrel?", "Wagtail"),
        ("When does the ferry leave Port Sorrel?", "At what time is the ferry from Port Sorrel?", "6:45"),
        ("Where does the ferry from Port Sorrel go?", "Which town does one reach from Port Sorrel?", "Greel"),
        ("What does a bicycle cost on the ferry of Port Sorrel?", "I take my bicycle at Port Sorrel; how much is it?",
         "two crowns"),
    ),
    _manual(
        "the Tarn protocol",
        "The Tarn protocol listens on port 4127. A session ends after 15 idle minutes. Keys are exchanged by the Lomax "
        "handshake. Its current version is 3.8.",
        ("On which port does the Tarn protocol listen?", "Which port do I open for the Tarn protocol?", "4127"),
        ("When does a session of the Tarn protocol end?", "How long may a Tarn session be idle?", "15"),
        ("How does the Tarn protocol exchange keys?", "What is the handshake of the Tarn protocol called?", "Lomax"),
        ("What is the current version of the Tarn protocol?", "Which version has the Tarn protocol now?", "3.8"),
    ),
    _manual(
        "the Orlop bakery",
        "The Orlop bakery opens at five in the morning. Its oldest loaf is the Drummer, baked with caraway. Mondays "
        "are free of walnuts. The head baker is Sunniva Krog.",
        ("When does the Orlop bakery open?", "From what time can I shop at the Orlop bakery?", "five"),
        ("What is the oldest loaf of the Orlop bakery?", "Which loaf has the Orlop bakery had longest?", "Drummer"),
        ("What is avoided on Mondays in the Orlop bakery?", "What has the Orlop bakery not on Mondays?", "walnuts"),
        ("Who is the head baker of the Orlop bakery?", "Who leads the Orlop bakery?", "Sunniva Krog"),
    ),
    _manual(
        "the Veeder pump",
        "The Veeder pump moves 32 litres a minute. Its seal is replaced after 900 hours. The alarm lamp is violet. "
        "Spare parts come from the depot in Ostrava.",
        ("How much does the Veeder pump move in a minute?", "What is the flow of the Veeder pump?", "32 litres"),
        ("When is the seal of the Veeder pump replaced?", "How long does a Veeder seal last?", "900 hours"),
        ("Which colour has the alarm lamp of the Veeder pump?", "How does the Veeder pump's alarm shine?", "violet"),
        ("Where do spare parts of the Veeder pump come from?", "Which depot serves the Veeder pump?", "Ostrava"),
    ),
    _manual(
        "Camp Rime",
        "Camp Rime lies at 2,310 metres. Its huts are heated with peat. The warden is called Ansel Botha. The last bus "
        "down leaves at 17:20.",
        ("How high does Camp Rime lie?", "What is the altitude of Camp Rime?", "2,310"),
        ("What are the huts of Camp Rime heated with?", "Which fuel warms the huts of Camp Rime?", "peat"),
        ("What is the warden of Camp Rime called?", "Who looks after Camp Rime?", "Ansel Botha"),
        ("When does the last bus leave Camp Rime?", "How late can I take a bus from Camp Rime?", "17:20"),
    ),
    _manual(
        "the Quern licence",
        "The Quern licence costs 85 euros a year. It covers six machines. Support answers within two days. Students "
        "apply with the code LINNET.",
        ("What does the Quern licence cost?", "How much is a Quern licence for a year?", "85 euros"),
        ("How many machines does the Quern licence cover?", "On how many machines may I use Quern?", "six"),
        ("How fast does support answer under the Quern licence?", "How long do I wait for Quern support?", "two days"),
        ("Which code do students use for the Quern licence?", "I study; what is my code for Quern?", "LINNET"),
    ),
)  # fmt: skip
