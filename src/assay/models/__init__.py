"""Language models and encoders to try methods on: small ones that come in a package, or your own.

Nothing here uses the network unless it says so. It needs the extra ``lm`` (torch and transformers). How well a language
model speaks after it was changed is measured by ``assay.models.quality``.
"""

from assay.models.embeddings import demo_embeddings
from assay.models.encoder import Encoder, demo_encoder
from assay.models.language import demo_lm, load_lm, named_lm

__all__ = ["Encoder", "demo_embeddings", "demo_encoder", "demo_lm", "load_lm", "named_lm"]
