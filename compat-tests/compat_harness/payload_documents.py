"""Draws schemas and JSON documents for them: right ones, and wrong ones where parsers differ.

Owns: the types, values and faults that are drawn. One seed gives one sequence.
"""

from __future__ import annotations

import base64
import json
import random

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns")
"""Zones of sessions: one without offset, one with summer time, and one west with half an hour."""
FAULTS = ("}", "{", ",", '"', "'", "[", "]", ":", "x", "\\", "\n", "\x01", "0", "-", "/*c*/", "#")
NUMBERS = (
    *("0", "1", "-1", "-0", "7", "127", "128", "-128", "-129", "255", "256", "32767", "32768"),
    *("-32769", "2147483647", "2147483648", "-2147483649", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "123456789012345678901234567890"),
    *("16777217", "1.0", "-0.0", "1.5", "0.1", "2.675", "1.005", "99999999.995", "1e2", "1E+2"),
    *("1e-2", "1e400", "-1e400", "1e-400", "3.4028235677973366e38", "1e39", "1e-46", "5e-324"),
    *("1.7976931348623159e308", "0.30000000000000004", "1.00000017881393432617187499", "1e18"),
    *("NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF", "Inf", "-NaN", "+1", "01", "1.", ".5"),
    *("1e", "0x1", "1_0", "--1", "12345678.905", "-12345678.905", "1e7", "1e8", "0.00", "1.255"),
)
NUMBER_TEXTS = (
    "NaN",
    "INF",
    "+INF",
    "-INF",
    "Infinity",
    "+Infinity",
    "-Infinity",
    "nan",
    "1,000.5",
)
WORDS = ("true", "false", "null", "True", "nul", "truex", "undefined")
TEXTS = (
    *("", " ", "a", "ä€😀", "line\\nbreak", 'quote\\"d', "\\u00e4", "\\ud83d\\ude00", "\\ud800"),
    *("\\ude00x", "\\/", "\\'", "\\x", "tab\there", "Info", ": Inf", "a: -NaN", "\\u0000", "true"),
    *("{}", "[1]", "null", "1.5", "+1", "1e3", "1.", ".5", " 1", "1,5", "0012", "\x7f", "\\u12"),
)


class Documents:
    """Draws columns of every type, and documents that mostly fit them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._is_plain = False

    def schema(self) -> StructType:
        """Return one to six columns."""
        schema = StructType()
        for number in range(self._random.randint(1, 6)):
            schema = schema.add(f"c{number}", self._kind(2))
        return schema

    def document(self, schema: StructType) -> bytes:
        """Return a document: a plain one, or one with faults, which may be no JSON."""
        self._is_plain = self._random.random() < 0.4
        text = self._object(schema)
        if self._is_plain:
            return text.encode()
        chance = self._random.random()
        if chance < 0.05:
            place = self._random.randint(0, len(text))
            length = self._random.choice((0, 0, 1, len(text)))
            text = text[:place] + self._random.choice(FAULTS) + text[place + length :]
        elif chance < 0.08:
            text = text[: self._random.randint(0, len(text))]
        elif chance < 0.11:
            text = self._random.choice(
                ("", " \n", "[]", f"[{text}]", "null", "5", '"a"', "{}", "x")
            )
        elif chance < 0.14:
            text += self._random.choice((" ", "\n", text, "x", "}", ",", " {}", "\x00", '"'))
        elif chance < 0.16:
            text = "\ufeff" + text
        elif chance < 0.18:
            data = text.encode()
            place = self._random.randint(0, len(data))
            return data[:place] + self._random.choice((b"\xff", b"\xc3", b"\xe4")) + data[place:]
        return text.encode("utf-8", "surrogatepass")

    def _kind(self, depth: int) -> DataType:
        draw = self._random
        scalars: tuple[DataType, ...] = (
            *(BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType()),
            *(DoubleType(), StringType(), BinaryType(), DateType(), TimeType(), TimestampType()),
            *(TimestampType(), TimestampNTZType(), DecimalType(10, 2), DecimalType(38, 18)),
            *(DecimalType(1, 1), DecimalType(18, 0)),
        )
        chance = draw.random() if depth else 1.0
        if chance < 0.1:
            return ArrayType(self._kind(depth - 1))
        if chance < 0.15:
            return MapType(StringType(), self._kind(depth - 1))
        if chance < 0.25:
            inner = StructType()
            for number in range(draw.randint(1, 3)):
                inner = inner.add(f"c{number}", self._kind(depth - 1))
            return inner
        return draw.choice(scalars)

    def _object(self, schema: StructType) -> str:
        draw = self._random
        members = [
            (field.name, self._value(field.dataType))
            for field in schema.fields
            if draw.random() < 0.9
        ]
        if draw.random() < 0.15 and not self._is_plain:
            members.append((draw.choice(("other", "C0", "", "c\\u0030")), self._anything(2)))
        if draw.random() < 0.06 and not self._is_plain:
            twice = draw.choice(schema.fields)
            members.insert(draw.randint(0, len(members)), (twice.name, self._value(twice.dataType)))
        if draw.random() < 0.2:
            draw.shuffle(members)
        return self._join("{}", [f"{self._quote(name)}:{text}" for name, text in members])

    def _value(self, kind: DataType) -> str:
        draw = self._random
        chance = draw.random()
        if chance < 0.05:
            return "null"
        if chance < 0.08 and not self._is_plain:
            return self._anything(2)
        if isinstance(kind, StructType):
            return self._object(kind)
        if isinstance(kind, ArrayType):
            elements = [self._value(kind.elementType) for _ in range(draw.randint(0, 3))]
            return self._join("[]", elements)
        if isinstance(kind, MapType):
            names = [draw.choice(("a", "b", "c0", "", "é")) for _ in range(draw.randint(0, 3))]
            return self._join(
                "{}", [f"{self._quote(name)}:{self._value(kind.valueType)}" for name in names]
            )
        return self._scalar(kind)

    def _scalar(self, kind: DataType) -> str:
        draw = self._random
        if self._is_plain:
            return self._plain_scalar(kind)
        if isinstance(kind, BooleanType):
            return draw.choice(("true", "false", *WORDS[:3]))
        if isinstance(kind, StringType):
            return draw.choice((self._quote(draw.choice(TEXTS)), self._quote("plain")))
        if isinstance(kind, BinaryType):
            return self._quote(self._base64())
        if isinstance(kind, DateType | TimestampType | TimestampNTZType | TimeType):
            if draw.random() < 0.1:
                return draw.choice(NUMBERS)
            return self._quote(self._time(kind))
        if draw.random() < 0.1:
            text = draw.choice(NUMBER_TEXTS + NUMBERS)
            return self._quote(text)
        if draw.random() < 0.4:
            return str(draw.randint(-100, 100))
        return draw.choice(NUMBERS)

    def _plain_scalar(self, kind: DataType) -> str:
        draw = self._random
        if isinstance(kind, BooleanType):
            return draw.choice(("true", "false"))
        if isinstance(kind, StringType):
            return json.dumps(draw.choice(("", "plain", "ä€", 'a"b\n')), ensure_ascii=False)
        if isinstance(kind, BinaryType):
            return f'"{base64.b64encode(draw.randbytes(draw.randint(0, 7))).decode()}"'
        if isinstance(kind, DateType):
            return f'"20{draw.randint(0, 99):02}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"'
        if isinstance(kind, FloatType | DoubleType):
            return repr(draw.uniform(-1e6, 1e6) * 10.0 ** draw.randint(-20, 20))
        if isinstance(kind, DecimalType):
            return "0.1" if kind.precision == 1 else str(draw.randint(-(10**7), 10**7) / 100)
        clock = f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}"
        if isinstance(kind, TimeType):
            return f'"{clock}"'
        if isinstance(kind, TimestampType | TimestampNTZType):
            date = draw.choice(
                ("2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "1999-12-31")
            )
            digits = draw.choice((0, 0, 3, 6, 7, 9))
            fraction = "." + "".join(draw.choices("0123456789", k=digits)) if digits else ""
            zone = draw.choice(("", "", "Z", "+01:00", "-03:30"))
            zone = zone if isinstance(kind, TimestampType) else ""
            return f'"{date}{draw.choice("T ")}{clock}{fraction}{zone}"'
        return str(draw.randint(-100, 100))

    def _time(self, kind: DataType) -> str:
        draw = self._random
        year = f"{draw.choice((1, 1582, 1847, 1899, 1945, 1980, 2026, 2026, 2026, 9999)):04}"
        if draw.random() < 0.08:
            year = draw.choice(("0000", "-0001", "+2026", "12345", "294247", "-290308", "999999"))
        month, day = draw.choice((1, 2, 3, 10, 11, 12, 12, 13)), draw.choice((1, 8, 25, 29, 30, 31))
        if draw.random() < 0.3:
            # The nights in which clocks change in the zones of the sessions.
            year, month, day = "2026", *draw.choice(((3, 8), (3, 29), (10, 25), (11, 1)))
        date = f"{year}-{month:02}-{day:02}"
        if draw.random() < 0.05:
            date = draw.choice((year, f"{year}-{month}", f"{year}-{month}-{day}", f"{date[1:]}"))
        if isinstance(kind, DateType) and draw.random() < 0.8:
            return date + draw.choice(("", "", "", "T", " x", "T12:00:00Z", "Z"))
        hour = draw.choice((0, 1, 2, 2, 3, 12, 23, 24))
        clock = f"{hour:02}:{draw.choice((0, 15, 30, 59)):02}:{draw.choice((0, 5, 59, 59, 60)):02}"
        if draw.random() < 0.1:
            clock = draw.choice((f"{hour}", f"{hour}:5", f"{hour}:5:7", f"{hour:02}:30", "", ":"))
        if draw.random() < 0.6:
            digits = draw.choice((0, 1, 3, 6, 7, 9, 12))
            clock += "." + "".join(draw.choices("0123456789", k=digits))
        zone = draw.choice(
            (
                *("", "", "", "", "", "Z", "Z", "Z", "+01:00", "-05:30", "+0100", "+1", "+1:30"),
                *(
                    "+18:00",
                    "+18:01",
                    "-19:00",
                    "+01:60",
                    "+05:30:15",
                    " Europe/Paris",
                    " PST",
                    "z",
                ),
                *("UTC", " UTC+3", "GMT", "GMT+01:00", " GMT+1:30", "Nowhere", " Europe", " ", "."),
                *("[Europe/Paris]", "+", " UT-2", "EST", " Etc/GMT-14", "America/New_York"),
            )
        )
        if isinstance(kind, TimeType) and draw.random() < 0.8:
            return draw.choice(("", "", "", "T", " ")) + clock + draw.choice(("", "", "", zone))
        around = ("", "", "", "", "", " ", "\\n", "\\u001f")
        return (
            draw.choice(around)
            + f"{date}{draw.choice(('T', 'T', ' ', ' ', 't', '  '))}{clock}{zone}"
            + draw.choice(around)
        )

    def _base64(self) -> str:
        draw = self._random
        text = base64.b64encode(draw.randbytes(draw.randint(0, 7))).decode()
        if draw.random() < 0.3:
            place = draw.randint(0, len(text))
            text = text[:place] + draw.choice(("=", " ", "-", "A", "\\n", "\\u0041")) + text[place:]
        return text

    def _anything(self, depth: int) -> str:
        draw = self._random
        chance = draw.random()
        if depth and chance < 0.2:
            return self._join("[]", [self._anything(depth - 1) for _ in range(draw.randint(0, 3))])
        if depth and chance < 0.4:
            names = [draw.choice(("c0", "c1", "x")) for _ in range(draw.randint(0, 3))]
            members = [f"{self._quote(name)}:{self._anything(depth - 1)}" for name in names]
            return self._join("{}", members)
        if chance < 0.6:
            return self._quote(draw.choice(TEXTS + NUMBER_TEXTS))
        if chance < 0.8:
            return draw.choice(NUMBERS)
        if chance < 0.95:
            return draw.choice(WORDS[:3])
        return draw.choice(WORDS)

    def _join(self, brackets: str, parts: list[str]) -> str:
        space = self._random.choice(("", "", "", " ", "\n", "\t", "\r\n"))
        return brackets[0] + space + f",{space}".join(parts) + space + brackets[1]

    def _quote(self, text: str) -> str:
        if not self._is_plain and self._random.random() < 0.04 and '"' not in text:
            return f"'{text}'"
        return f'"{text}"'
