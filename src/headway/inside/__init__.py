"""Look inside a model: what it read, where it looked, when it decided.

from headway.inside import load, look

look(load("tatoeba-de-en"), "Ich gehe nach Hause.").save("look.html")
"""

from headway.inside.change import Change
from headway.inside.factors import factors
from headway.inside.foreign import from_torch
from headway.inside.heads import heads
from headway.inside.lens import lens
from headway.inside.looking import look
from headway.inside.reading import Ask, read
from headway.inside.trace import Trace, trace
from headway.tasks.opened import open_plain as load

__all__ = [
    "Ask",
    "Change",
    "Trace",
    "factors",
    "from_torch",
    "heads",
    "lens",
    "load",
    "look",
    "read",
    "trace",
]
