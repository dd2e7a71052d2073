"""Persons, auctions and bids, generated a chunk of columns at a time.

The model is public: NEXMark - A Benchmark for Queries over Data Streams (Tucker, Tufte, Papadimos
and Maier, 2002). Of every 50 events one is a person who registers, three are auctions that open,
and 46 are bids. Most bids go to few auctions and come from few persons.

Every value is a function of the seed, the column and the event's number, so that chunks of any size
hold the same events, and can be generated in any order, by any number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

Words: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.int64]

KINDS = ("person", "auction", "bid")
PERSONS, AUCTIONS, BIDS = SHARES = (1, 3, 46)
"""How many of every `GROUP` events are of each kind; persons come first in a group, bids last."""
GROUP = sum(SHARES)
FIRST_ID = 1_000
"""The id of the first person, and of the first auction."""
CATEGORIES = (10, 11, 12, 13, 14)
CHANNELS = 10_000
"""Channels that are named by their number; four others carry half of all bids."""

TIME = pa.timestamp("us", tz="UTC")
"""The type of all times; their values are whole milliseconds."""

#: The columns of each kind, as Spark's DDL.
COLUMNS = {
    "person": "id long, name string, email string, credit_card string, city string, state string, "
    "date_time timestamp, extra string",
    "auction": "id long, item_name string, description string, initial_bid long, reserve long, "
    "date_time timestamp, expires timestamp, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, "
    "date_time timestamp, extra string",
}
TYPES: dict[str, pa.DataType] = {"long": pa.int64(), "string": pa.string(), "timestamp": TIME}
SCHEMAS = {
    kind: pa.schema([(name, TYPES[of]) for name, of in map(str.split, columns.split(", "))])
    for kind, columns in COLUMNS.items()
}

GIVEN = "Ada Boris Chiara Dmitri Elif Femi Greta Hiro Ines Jonas Kavya Lena Mateo Nadia Omar Pilar"
FAMILY = "Abara Brandt Castro Dahl Engel Fontana Gruber Horvat Ito Jansen Kaya Lopes Moreau Novak"
PLACES = (
    "Eugene,OR Salem,OR Bend,OR Boise,ID Nampa,ID Pocatello,ID Fresno,CA Oakland,CA Sacramento,CA "
    "Spokane,WA Tacoma,WA Yakima,WA Tucson,AZ Mesa,AZ Reno,NV Elko,NV Provo,UT Ogden,UT"
)
ITEMS = "lamp clock chair radio camera violin kettle globe mirror sledge anvil quilt stamp atlas"
KINDS_OF_ITEM = "old rare plain painted broken signed tall small wooden silver"
HOT_CHANNELS = "search mail feed banner"


class Events(NamedTuple):
    """The events of a chunk, or of a run, by their kind; each in the order of their numbers."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


@dataclass(frozen=True)
class Plan:
    """What is generated: how many events, the seed of all that is random, and how they are.

    Times are event times; an event's time may be `disorder_ms` behind the largest of earlier
    events. Bids are on the latest `in_flight` auctions, and the latest `active_persons` sell and
    bid; one in `hot` of both is hot, until the next one is.
    """

    events: int
    seed: int = 1
    events_per_second: int = 1_000
    disorder_ms: int = 1_000
    first_ms: int = 1_750_000_000_000
    in_flight: int = 200
    active_persons: int = 1_000
    hot: int = 100

    @property
    def horizon_ms(self) -> int:
        """How long an auction stays among the latest, and how long it is open on average."""
        return max(1, self.in_flight * GROUP * 1_000 // (AUCTIONS * self.events_per_second))

    @property
    def longest_auction_ms(self) -> int:
        """No auction is open for longer."""
        return 2 * self.horizon_ms


class Generator:
    """Makes a plan's events."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def chunk(self, first: int, last: int) -> Events:
        """The events with the numbers from `first` up to, but not including, `last`."""
        numbers = np.arange(first, last, dtype=np.int64)
        place = numbers % GROUP
        person = numbers[place < PERSONS]
        auction = numbers[(place >= PERSONS) & (place < PERSONS + AUCTIONS)]
        bid = numbers[place >= PERSONS + AUCTIONS]
        return Events(self._persons(person), self._auctions(auction), self._bids(bid))

    def chunks(self, size: int) -> Iterator[Events]:
        """All events, `size` of them at a time."""
        for first in range(0, self.plan.events, size):
            yield self.chunk(first, min(first + size, self.plan.events))

    def _persons(self, numbers: Numbers) -> pa.Table:
        draw = _Draws(self.plan.seed, "person", numbers)
        names = self._names
        whose = draw.below("name", len(names))
        mailbox = pc.utf8_lower(pc.replace_substring(names.take(whose), " ", "."))
        ids = FIRST_ID + numbers // GROUP
        city, state = self._places
        where = draw.below("place", len(city))
        card = pa.array(10**15 + draw.below("card", 9 * 10**8) * 10**6 + draw.below("end", 10**6))
        columns = {
            "id": ids,
            "name": names.take(whose),
            "email": _joined(mailbox, pa.array(ids).cast(pa.string()), "@mail.example"),
            "credit_card": card.cast(pa.string()),
            "city": city.take(where),
            "state": state.take(where),
            "date_time": _times(self._times(numbers, draw)),
            "extra": self._extra(draw),
        }
        return pa.table(columns, schema=SCHEMAS["person"])

    def _auctions(self, numbers: Numbers) -> pa.Table:
        plan = self.plan
        draw = _Draws(plan.seed, "auction", numbers)
        times = self._times(numbers, draw)
        newest = numbers // GROUP
        hot = draw.below("hot seller", 4) > 0
        # Hot sellers are not the hot bidders.
        seller = np.where(
            hot,
            newest // plan.hot * plan.hot,
            newest - draw.below("seller", np.minimum(newest + 1, plan.active_persons)),
        )
        items = self._items
        item = items.take(draw.below("item", len(items)))
        start = _price(draw, "initial")
        columns = {
            "id": FIRST_ID + newest * AUCTIONS + numbers % GROUP - PERSONS,
            "item_name": item,
            "description": _joined("This is a ", item, ", as good as new."),
            "initial_bid": start,
            "reserve": start + _price(draw, "reserve"),
            "date_time": _times(times),
            "expires": _times(times + 1 + draw.below("length", plan.longest_auction_ms)),
            "seller": FIRST_ID + seller,
            "category": np.array(CATEGORIES)[draw.below("category", len(CATEGORIES))],
            "extra": self._extra(draw),
        }
        return pa.table(columns, schema=SCHEMAS["auction"])

    def _bids(self, numbers: Numbers) -> pa.Table:
        plan = self.plan
        draw = _Draws(plan.seed, "bid", numbers)
        newest = numbers // GROUP
        last = newest * AUCTIONS + AUCTIONS - 1
        auction = np.where(
            draw.below("hot auction", 2) > 0,
            last // plan.hot * plan.hot,
            last - draw.below("auction", np.minimum(last + 1, plan.in_flight)),
        )
        bidder = np.where(
            draw.below("hot bidder", 4) > 0,
            np.minimum(newest // plan.hot * plan.hot + 1, newest),
            newest - draw.below("bidder", np.minimum(newest + 1, plan.active_persons)),
        )
        channels, urls = self._channels
        channel = draw.below("channel", CHANNELS)
        often = draw.below("often", 8)
        channel = np.where(often < 4, CHANNELS + often, channel)
        columns = {
            "auction": FIRST_ID + auction,
            "bidder": FIRST_ID + bidder,
            "price": _price(draw, "price"),
            "channel": channels.take(channel),
            "url": urls.take(channel),
            "date_time": _times(self._times(numbers, draw)),
            "extra": self._extra(draw),
        }
        return pa.table(columns, schema=SCHEMAS["bid"])

    def _times(self, numbers: Numbers, draw: _Draws) -> Numbers:
        """Times of events in milliseconds; an event may be late, and none is early."""
        plan = self.plan
        late = draw.below("late", plan.disorder_ms + 1)
        return plan.first_ms + numbers * 1_000 // plan.events_per_second - late

    def _extra(self, draw: _Draws) -> pa.Array[Any]:
        """Text without a meaning, which makes a row as wide as a real one."""
        return self._texts.take(draw.below("extra", len(self._texts)))

    @cached_property
    def _texts(self) -> pa.Array[Any]:
        """Texts of 16 to 79 letters."""
        draw = _Draws(self.plan.seed, "texts", np.arange(8_192, dtype=np.int64))
        stops = np.cumsum(16 + draw.below("length", 64))
        letters = _Draws(self.plan.seed, "letters", np.arange(stops[-1], dtype=np.int64))
        text = (letters.below("letter", 26) + ord("a")).astype(np.uint8).tobytes().decode()
        starts = [0, *stops[:-1].tolist()]
        return pa.array([text[a:b] for a, b in zip(starts, stops.tolist(), strict=True)])

    @cached_property
    def _names(self) -> pa.Array[Any]:
        return pa.array([f"{given} {last}" for given in GIVEN.split() for last in FAMILY.split()])

    @cached_property
    def _items(self) -> pa.Array[Any]:
        kinds = KINDS_OF_ITEM.split()
        return pa.array([f"{kind} {item}" for kind in kinds for item in ITEMS.split()])

    @cached_property
    def _places(self) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Cities, and the states they are in."""
        pairs = [place.split(",") for place in PLACES.split()]
        return pa.array([city for city, _ in pairs]), pa.array([state for _, state in pairs])

    @cached_property
    def _channels(self) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Names of channels, the hot ones last, and the address to which each leads."""
        names = [f"channel-{number}" for number in range(CHANNELS)] + HOT_CHANNELS.split()
        path = [str(text) for text in self._texts.to_pylist()]
        urls = [
            f"https://auctions.example/{path[number % len(path)][:12]}/item?channel={name}"
            for number, name in enumerate(names)
        ]
        return pa.array(names), pa.array(urls)


class _Draws:
    """Random numbers of some events, different for each purpose.

    The mixing function is that of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom
    Number Generators, 2014).
    """

    def __init__(self, seed: int, kind: str, numbers: Numbers) -> None:
        self._key = f"{seed}/{kind}/"
        self._steps = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)

    def words(self, purpose: str) -> Words:
        """64 random bits per event."""
        # Polynomial hash of the purpose: the streams of two purposes start far from each other.
        start = 0
        for byte in (self._key + purpose).encode():
            start = (start * 0x100000001B3 + byte + 1) % 2**64
        words = self._steps + np.uint64(start)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words ^= words >> np.uint64(shift)
            words *= np.uint64(factor)
        words ^= words >> np.uint64(31)
        return words

    def below(self, purpose: str, bound: int | Numbers) -> Numbers:
        """Numbers from 0 on, below a bound of at most 2**31."""
        words = self.words(purpose) >> np.uint64(32)
        words *= np.asarray(bound, dtype=np.uint64)
        return (words >> np.uint64(32)).view(np.int64)


def _price(draw: _Draws, purpose: str) -> Numbers:
    """Cents, from 1.00 to 1 000 000.00; each power of ten as often as another."""
    share = (draw.words(purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.rint(np.power(10.0, 2.0 + 6.0 * share)).astype(np.int64)


def _times(milliseconds: Numbers) -> pa.Array[Any]:
    return pa.array(milliseconds * 1_000, TIME)


def _joined(*parts: Any) -> pa.Array[Any]:
    array: pa.Array[Any] = pc.binary_join_element_wise(*parts, "")
    return array


def write(plan: Plan, folder: Path, size: int, parts: int = 1) -> list[int]:
    """Write a plan's events as ``folder/<kind>/<chunk>-<part>.parquet``; the sizes of the chunks.

    A chunk of `size` events of all kinds is all that is in memory, and has `parts` files of each.
    Their times of change are a second apart, in the order of the events: streams go by them.
    """
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    sizes = []
    for number, events in enumerate(Generator(plan).chunks(size)):
        for kind, table in zip(KINDS, events, strict=True):
            for part in range(parts):
                first, last = (table.num_rows * n // parts for n in (part, part + 1))
                path = folder / kind / f"{number:05}-{part}.parquet"
                pq.write_table(table.slice(first, last - first), path)
                changed = plan.first_ms // 1_000 + number * parts + part
                os.utime(path, (changed, changed))
        sizes.append(sum(table.num_rows for table in events))
    return sizes
