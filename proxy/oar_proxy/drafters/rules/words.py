"""A question as words: tokens, stems, and the closed vocabulary of English and Russian.

The vocabulary has only words that mean the same in every schema. A word that is neither here
nor in the catalog stays unexplained, and the drafter abstains.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import snowballstemmer


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, a quoted value or a punctuation mark, as it stands in the question."""

    text: str
    kind: str
    """``word``, ``number``, ``quoted`` or ``mark``."""
    first: bool = False
    """It opens a sentence, where a capital means nothing."""

    @property
    def lower(self) -> str:
        """The word as vocabularies have it."""
        return self.text.lower().replace("ё", "е")

    @property
    def capital(self) -> bool:
        """It begins with a capital although no sentence begins here, or is a code like ``B52``."""
        code = any(map(str.isdigit, self.text)) or (len(self.text) > 1 and self.text.isupper())
        return self.kind == "word" and self.text[0].isupper() and (code or not self.first)


_TOKEN: Final = re.compile(
    r"""
    (?P<quoted> (?<!\w)"(?P<q1>[^"]+)" | (?<!\w)'(?P<q2>[^']+)'(?!\w)
              | ``\s*(?P<q6>[^`']+?)\s*''
              | “(?P<q3>[^”]+)” | «(?P<q4>[^»]+)» | (?<!\w)‘(?P<q5>[^’]+)’(?!\w) )
  | (?P<number> (?<![\w.-]) -?\d+(?:,\d{3})*(?:\.\d+)? (?![\w-]) )
  | (?P<word> \w+(?:[.]\w+)*(?:[-'’]\w+)* )
  | (?P<mark> [^\s\w] )
    """,
    re.VERBOSE,
)
_POSSESSIVE: Final = re.compile(r"['’]s$|['’]$")
_NEGATED_VERB: Final = re.compile(r"(?<=\w)n['’]t$")


def tokenise(text: str) -> tuple[Token, ...]:
    """Split a question into tokens. Nothing but white space is lost."""
    tokens: list[Token] = []
    first = True
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if match.group("quoted"):
            value = next(v for n in range(1, 7) if (v := match.group(f"q{n}")) is not None)
            tokens.append(Token(value.strip(), "quoted"))
        elif match.group("number"):
            tokens.append(Token(match.group().replace(",", ""), "number"))
        elif match.group("word"):
            word = match.group()
            if _NEGATED_VERB.search(word.lower()):
                tokens.append(Token(word[:-3], "word", first))
                tokens.append(Token("not", "word"))
            else:
                tokens.extend(_parts(_POSSESSIVE.sub("", word), first))
        else:
            tokens.append(Token(match.group(), kind))
        first = match.group() in _SENTENCE_ENDS
    return tuple(tokens)


def _parts(word: str, first: bool) -> list[Token]:
    """Split a compound whose parts are names by themselves in a schema."""
    compound = _COMPOUND.fullmatch(word)
    if compound is None or word.isupper():
        return [Token(word, "word", first)]
    head, tail = (part for part in compound.groups() if part is not None)
    return [Token(head, "word", first), Token(tail, "word")]


def parts(word: str) -> list[str]:
    """Return a word of an identifier, or the two it is put together from."""
    return [token.text for token in _parts(word, first=False)]


_COMPOUND: Final = re.compile(
    r"(промо)(код\w*)|(zip|post)(codes?)|(birth)(dates?|days?|places?|years?)|(cell)(phones?)"
    r"|(first|last|user|sur)(names?)",
    re.IGNORECASE,
)
_SENTENCE_ENDS: Final = frozenset(".?!;:")

_IRREGULAR: Final = {
    "people": "person",
    "men": "man",
    "women": "woman",
    "children": "child",
    "wives": "wife",
    "feet": "foot",
    "mice": "mouse",
    "ids": "id",
    "codes": "code",
    "weighs": "weight",
    "weighed": "weight",
    "weighted": "weight",
    "weighing": "weight",
    "weigh": "weight",
    "costs": "cost",
    "bought": "buy",
    "sold": "sell",
    "taught": "teach",
    "born": "birth",
    "люди": "человек",
    "людей": "человек",
}
_STEMS: Final = {
    "nationality": "nationality",
    "nationalities": "nationality",
    "department": "department",
    "departments": "department",
}
"""Words that a stemmer takes for forms of others: a department does not depart."""
_FLEETING_VOWEL: Final = 5
_ENGLISH: Final = snowballstemmer.stemmer("english")
_STEMMING: Final = threading.Lock()
"""A stemmer keeps the word it works on; catalogs are indexed in threads."""
_RUSSIAN: Final = snowballstemmer.stemmer("russian")


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return what the inflected forms of an English or Russian word share."""
    word = word.lower().replace("ё", "е")
    if word in _STEMS:
        return _STEMS[word]
    # Russian drops a vowel: "доставок" is of "доставка", "задержек" of "задержка".
    if len(word) > _FLEETING_VOWEL and word.endswith(("ок", "ек")) and is_cyrillic(word):
        word = f"{word[:-2]}ка"
    word = _IRREGULAR.get(word, word)
    stemmer = _RUSSIAN if is_cyrillic(word) else _ENGLISH
    with _STEMMING:
        return str(stemmer.stemWord(word))


def is_cyrillic(text: str) -> bool:
    """Tell whether any letter is Cyrillic."""
    return any("а" <= letter <= "я" or letter == "ё" for letter in text.lower())


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(text.split())


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of the words of a list."""
    return frozenset(map(stem, text.split()))


def _groups(*lines: str) -> dict[str, frozenset[int]]:
    index: dict[str, set[int]] = {}
    for number, line in enumerate(lines):
        for word in line.split():
            index.setdefault(stem(word), set()).add(number)
    return {word: frozenset(numbers) for word, numbers in index.items()}


_SYNONYMS: Final = _groups(
    "country nation",
    "phone telephone",
    "cell mobile cellphone",
    "salary wage pay",
    "film movie",
    "car vehicle automobile auto",
    "cost price amount fee expense",
    "employee worker staff",
    "teacher instructor",
    "id identifier",
    "sex gender",
    "kind type category",
    "description describe",
    "citizenship citizen",
    "nationality national",
    "creator author writer written",
    "enrolment enrollment enroll enrol",
    "zip postcode postal zipcode",
    "email mail emails",
    "organisation organization",
    "source depart departing departure origin leave leaving",
    "destination arrive arriving land landing",
    "delay задержка",
    "delivery доставка",
    "promo промо",
    "city город",
    "reason причина",
    "return возврат",
    "order заказ",
    "refund возмещение",
    "discount скидка",
    "name название имя",
    "price цена",
    "customer client клиент покупатель",
    "day день дней",
    "date дата",
    "year год",
    "age возраст",
    "country страна",
    "code код",
    "distance расстояние",
    "courier курьер",
    "salary зарплата",
    "product товар",
    "warehouse склад",
    "number номер",
    "shop store магазин",
    "student pupil",
    "doctor physician",
    "company firm",
    "picture photo image",
    "length duration",
)
"""Words that name one thing in any schema, English with its Russian counterpart."""

_MOVEMENTS: Final = stems_of("depart leave arrive land fly start end begin finish come go")


def is_movement(words: str) -> bool:
    """Tell whether a name is a verb that takes a preposition: ``departing from``, ``born in``."""
    last = words.rsplit(maxsplit=1)[-1].lower()
    return last.endswith(("ed", "ing")) or last == "born" or stem(last) in _MOVEMENTS


EXACT: Final = 1.0
RELATED: Final = 0.9
SYNONYM: Final = 0.8
_SHARED_LETTERS: Final = 5
"""Stems that share so many letters, one being the whole of the other, are one word inflected
differently (``depart``, ``departure``); with fewer, ``state`` would be ``station``."""


@lru_cache(maxsize=200_000)
def likeness(one: str, other: str) -> float:
    """Return how far two *stems* are one word: 0 when they are not."""
    if one == other:
        return EXACT
    short, long = sorted((one, other), key=len)
    if len(short) >= _SHARED_LETTERS and long.startswith(short) and len(long) - len(short) <= 3:
        return RELATED
    if _SYNONYMS.get(one, frozenset()) & _SYNONYMS.get(other, frozenset()):
        return SYNONYM
    return 0.0


# --- the closed vocabulary --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sense:
    """What a phrase of the vocabulary does: its kind, and the argument of the kind."""

    kind: str
    value: str = ""


def _vocabulary(table: dict[Sense, str]) -> dict[tuple[str, ...], Sense]:
    senses: dict[tuple[str, ...], Sense] = {}
    for sense, phrases in table.items():
        for phrase in phrases.split("|"):
            senses[tuple(phrase.split())] = sense
    return senses


VOCABULARY: Final = _vocabulary(
    {
        # words that ask for output and say nothing else
        Sense("command"): (
            "show|list|give|find|return|display|get|tell|tell me|show me|give me|report|compute"
            "|calculate|determine|identify|name all|select|retrieve|provide|please show|output"
            "|покажи|покажите|выведи|выведите|перечисли|перечислите|найди|найдите|назови|дай"
        ),
        Sense("noise"): (
            "the|a|an|all|me|us|please|what|what's|which|who|whom|there|their|its|his|her|it|they"
            "|them|this|these|those|also|so far|in total|listed|exist|exists|existing|available"
            "|recorded|we|you|can|could|respective|corresponding|respectively|currently|possible"
            "|ever|any|as|just|only|his or her|he or she|own|some|such"
            "|please list|in the table|in the tables|in the database|as well|database|table"
            "|tables|data"
            "|information|value|values|details of|would|will|i|want|to know|know|overall"
            "|what|то|что|это|какая|какие|какой|какое|каков|какова|каковы|кто|все|всех"
            "|мне|есть|был|была|было|были|имеется|существует|чему|равна|равен|равно"
        ),
        Sense("be"): "is|are|was|were|be|been|being|является|являются",
        Sense("do"): "do|does|did",
        Sense("have"): "have|has|had|having|having a|own|owns|имеет|имеют|имеющих|имеющие",
        Sense("verb"): (
            "use|uses|used|using|produce|produced|make|made|belong|belongs|belonging|live|lives"
            "|living|come|comes|came|appear|appears|offer|offered|offers|affiliated|located"
            "|associated|release|released|releases|created|create|stand|stands|correspond"
            "|corresponds|corresponding to|occur|occurred|contained|stored|happened|held|given"
            "|record|work|works|working|go|went|through|include|includes|included|get|gets"
            "|received|receive|related|shared|taken|done|provided|assigned|kept|based|registered"
            "|perform|performs|performed|performing|operate|operated|operating|undergo|underwent"
            "|undergone|gone|conduct|conducted|run|runs|serve|serves|served|play|plays|playing"
            "|manage|manages|managed|sell|sells|sold|attend|attended|hold|holds|owned|owning"
        ),
        Sense("both"): "both",
        Sense("ask", "place"): "where|где",
        Sense("ask", "date"): "when|когда",
        Sense("ask", "cost"): "how much",
        Sense("sort"): "sort|order",
        Sense("ask", "age"): "how old",
        Sense("ask", "weight"): "how heavy",
        Sense("ask", "height"): "how tall",
        Sense("ask", "length"): "how long",
        Sense("of"): "of",
        Sense("for"): "for|для",
        Sense("prep", "place"): "in|from|at|within|в|во|из",
        Sense("prep"): "on|to|into|across|among|на|у|к|от|со стороны",
        Sense("unsupported"): (
            "different from|differs from|differ from|same as|except for|instead of"
            "|respectively different|each other|ratio|percentage|percent of|difference between"
        ),
        Sense("with"): "with|with a|with an|с|со",
        Sense("whose"): "whose|чей|чья|чьи|которых|у которых",
        Sense("rel"): "that|who|который|которые|которая|которое",
        Sense("by"): "by",
        Sense("and"): "and|as well as|along with|together with|and also|followed by|&|и|а также",
        Sense("or"): "or|или",
        Sense("either"): "either|либо",
        Sense("not"): "not|n't|other than|except|excluding|не",
        Sense("without"): (
            "without|without any|no|have no|has no|had no|do not have|does not have|did not have"
            "|do not have any|does not have any|did not have any|have not|has never|have never"
            "|never|lack|lacks|without a|without an|do not have a|does not have a|without the"
            "|have not had any|without having|без|нет"
        ),
        Sense("named"): "named|called|name is|names are|titled|entitled|с именем|с названием",
        Sense("equal"): "equal|equal to|equals|=|equaling|exactly|равно|равен|равна",
        # counting
        Sense("how many"): "how many|сколько|how many of",
        Sense("number of"): (
            "frequency|"
            "number of|count of|count|total number of|counts of|amount of times"
            "|total count of|numbers of|количество|число|общее количество|общее число|кол-во"
        ),
        Sense("distinct"): (
            "different|distinct|unique|without repetition|without duplicates|various|in which"
            "|in what|уникальных"
            "|уникальные|различных|различные|разных|разные"
        ),
        # aggregates
        Sense("aggregate", "avg"): (
            "average|avg|mean|on average|средняя|средний|среднее|средние|средней|среднюю|в среднем"
        ),
        Sense("aggregate", "max"): (
            "maximum|max|maximal|максимальная|максимальный|максимальное|максимум|максимальную"
        ),
        Sense("aggregate", "min"): (
            "minimum|min|minimal|минимальная|минимальный|минимальное|минимум|минимальную"
        ),
        Sense("aggregate", "sum"): (
            "total|sum|sum of|total amount of|combined|сумма|сумму|суммарная|суммарный|суммарное"
            "|общая|общий|общее|общую"
        ),
        # superlatives of any quantity
        Sense("most", "desc"): (
            "highest|largest|greatest|biggest|most|top|highly"
            "|самый большой|самая большая|наибольшая|наибольший|наибольшее|больше всего"
        ),
        Sense("most", "asc"): (
            "lowest|smallest|least|fewest|littlest"
            "|самый маленький|самая маленькая|наименьшая|наименьший|наименьшее|меньше всего"
        ),
        Sense("common", "desc"): "most common|most popular|most frequent|most frequently used"
        "|commonest",
        Sense("common", "asc"): "least common|least popular|least frequent|rarest",
        # superlatives of a certain quantity: its words after the direction
        Sense("extreme", "desc age"): "oldest|eldest|самый старый|самая старая",
        Sense("extreme", "asc age"): "youngest|самый молодой|самая молодая",
        Sense("extreme", "desc date"): (
            "most recent|latest|newest|most recently|last|последний|последняя|последние"
        ),
        Sense("extreme", "asc date"): "earliest|first|самый ранний|первый|первая",
        Sense("extreme", "desc cost"): "most expensive|priciest|costliest|самый дорогой",
        Sense("extreme", "asc cost"): "cheapest|least expensive|самый дешевый",
        Sense("extreme", "desc weight"): "heaviest",
        Sense("extreme", "asc weight"): "lightest",
        Sense("extreme", "desc height"): "tallest",
        Sense("extreme", "asc height"): "shortest",
        Sense("extreme", "desc length"): "longest",
        # comparisons
        Sense("compare", ">"): (
            "more than|greater than|larger than|higher than|bigger than|over|above|exceeding"
            "|exceeds|exceed|in excess of|более|больше|больше чем|более чем|выше|свыше|>"
        ),
        Sense("compare", "<"): (
            "less than|fewer than|smaller than|lower than|under|below|менее|меньше|меньше чем"
            "|менее чем|ниже|<"
        ),
        Sense("compare", ">="): (
            "at least|no less than|not less than|no fewer than|a minimum of|minimum of"
            "|greater than or equal to|не менее|не меньше|как минимум|>="
        ),
        Sense("compare", "<="): (
            "at most|no more than|not more than|a maximum of|up to|less than or equal to"
            "|не более|не больше|<="
        ),
        Sense("compare", "> date"): "after|later than|since the end of|после|позже|newer than",
        Sense("compare", "< date"): "before|earlier than|prior to|до|раньше|ранее",
        Sense("compare", ">= date"): "since|начиная с",
        Sense("compare", "> age"): "older than|старше",
        Sense("compare", "< age"): "younger than|моложе|младше",
        Sense("compare", "> weight"): "heavier than",
        Sense("compare", "< weight"): "lighter than",
        Sense("compare", "> height"): "taller than",
        Sense("compare", "< height"): "shorter than",
        Sense("compare", "> length"): "longer than",
        Sense("between"): "between|in between|in the range of|ranging from|между",
        Sense("than"): "than|чем",
        Sense("or more"): "or more|or above|or over|or higher|and above|и более|и выше|или более",
        Sense("or less"): "or less|or fewer|or below|or under|и менее|или менее",
        # patterns
        Sense("like", "%s%"): (
            "contain|contains|containing|contain the substring|contains the substring"
            "|containing the substring|includes the substring|has the substring|contain the word"
            "|contains the word|containing the word|with the substring|with the word"
            "|has the word|include the word|includes the word|including the word"
            "|contains the letter|contain the letter|containing the letter|has the letter"
            "|contains a|substring"
            "|содержит|содержат|содержащий"
        ),
        Sense("like", "s%"): (
            "start with|starts with|starting with|begin with|begins with|beginning with"
            "|start with the letter|starts with the letter|starting with the letter"
            "|begins with the letter|начинается с|начинаются с"
        ),
        Sense("like", "%s"): "end with|ends with|ending with|ends in|ending in|заканчивается на",
        # grouping and ordering
        Sense("each"): (
            "for each|of each|each|for every|every|per|in each|by each|from each|to each|at each"
            "|for each of|grouped by|group by|for each different|of each different|on each"
            "|with each|across each|for each distinct"
            "|для каждого|для каждой|по каждому|по каждой|каждый|каждая|каждого|каждой|в каждом"
            "|в каждой|у каждого|у каждой|по каждым|по"
        ),
        Sense("order"): (
            "sorted by|ordered by|order by|sorted in|ordered in|in order of|ranked by"
            "|sorted according to|ordered according to|sorted|ordered|arranged by|in the order of"
            "|by order of|отсортированные по|упорядоченные по"
            "|в порядке|сортировка по|отсортируй по|отсортировать по"
        ),
        Sense("direction", "asc"): (
            "ascending|ascending order|in ascending order|in increasing order|increasing order"
            "|increasing|in ascending order of|in increasing order of|ascending order of"
            "|from lowest to highest|from low to high|from youngest to oldest"
            "|from smallest to largest|from oldest to newest|по возрастанию|в порядке возрастания"
        ),
        Sense("direction", "desc"): (
            "descending|descending order|in descending order|in decreasing order|decreasing order"
            "|decreasing|in descending order of|in decreasing order of|descending order of"
            "|in reverse order of|from highest to lowest|from high to low|from oldest to youngest"
            "|from largest to smallest|from newest to oldest|по убыванию|в порядке убывания"
        ),
        Sense("alphabet", "asc"): (
            "alphabetical order|in alphabetical order|alphabetically|in lexicographical order"
            "|in lexicographic order|lexicographical order|lexicographically"
            "|in ascending alphabetical order|in alphabetic order|in alphabetical order of"
            "|in alphabetical order by|в алфавитном порядке|по алфавиту|alphabetic"
        ),
        Sense("alphabet", "desc"): (
            "in reverse alphabetical order|in reversed lexicographical order"
            "|in descending alphabetical order|in reversed alphabetical order"
            "|in reverse lexicographical order|в обратном алфавитном порядке"
        ),
    }
)
LONGEST_PHRASE: Final = max(map(len, VOCABULARY))

_NUMBERS: Final = {
    word: str(number)
    for number, words in enumerate(
        (
            "zero ноль",
            "one single один одна",
            "two два две двух",
            "three три трех",
            "four четыре",
            "five пять",
            "six шесть",
            "seven семь",
            "eight восемь",
            "nine девять",
            "ten десять",
            "eleven",
            "twelve",
        )
    )
    for word in words.split()
}


def number_word(word: str) -> str | None:
    """Return a small number's digits for its name."""
    return _NUMBERS.get(word.lower())
