"""Reader of Wikipedia's XML dumps: the articles of a chunk, one by one.

The parser of wikitext is written in C and takes hours for a page of unclosed
markup. Neither a Python exception nor a signal handler can interrupt it. So
each worker starts a parser process, which the kernel ends at the time limit.
"""

import functools
import html
import multiprocessing
import re
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from xml.etree import ElementTree

from bert_tf.corpus import readers
from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Dropped
from bert_tf.errors import UserError
from bert_tf.errors import WorkerEndedError

OTHER_NAMESPACE = "page of another namespace"
REDIRECT = "redirect"
DISAMBIGUATION = "disambiguation page"
OTHER_MODEL = "page that is not wikitext"
TOO_SLOW = "page that takes over 10 s"
TOO_DEEP = "page that is nested too deeply"
_MAX_SECONDS = 10.0
_END = b"</page>"
# Numbers and names of the namespaces Media, File and Category. A link to a page
# in these namespaces shows no text.
_HIDDEN = ("-2", "6", "14")
_HIDDEN_NAMES = frozenset({"file", "image", "media", "category"})
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>]*>([^<]*)</namespace>')
# Templates of disambiguation pages. Dumps do not mark these pages, so templates
# and titles are matched. Each Wikipedia has template names in its own language.
_DISAMBIGUATION = re.compile(
    r"__DISAMBIG__|\{\{\s{0,9}(?:"
    r"[\w\s()/'–-]{0,60}disambig(?:uation)?(?:[ _]page|[ _-]cleanup)?|"
    r"disamb|disam|dab|hndis|geodis|schooldis|roaddis|numberdis|mathdab|"
    r"hospitaldis|begriffsklärung(?:sseite)?|"
    r"(?:page d'|sigle et )?homonymie(?: d(?:e|es|u|'|ans)[^{}|]{0,40})?|"
    r"sigle|patronymie|toponymie|paronymie|"
    r"desambiguaci[óo]n?|desambig|desambigua|"
    r"desambiguação|disambigua|dp|doorverwijspagina|ujednoznacznienie|disambrul|"
    r"неоднозначность|многозначность|неоднозначність|багатозначність|"
    r"неадназначнасць|појаснување|айрық|"
    r"пояснение|пояснителна страница|вишезначна одредница|čvor|"
    r"rozcestník(?: - [^{}|]{0,40})?|"
    r"rozlišovacia stránka|förgrening(?:ssida)?|gren|gaffel|flertydig|peker|"
    r"pekerside|fleirtyding|aðgreining|dubbelsinnig|discretiva|disambiguasi|"
    r"täsmennyssivu|täsmennys|egyért|anlam ayrımı|dəqiqləşdirmə|dezambig|"
    r"dezambiguizare|gwahaniaethu|idirdhealú|maana|nyahkekaburan|"
    r"მრავალმნიშვნელოვანი|բազմիմաստություն|"
    # The first template below is a link if it has arguments, so match it only
    # without arguments.
    r"توضيح(?=\s{0,9}\}\})|صفحة توضيح|ضد ابہام|"
    r"αποσαφήνιση|פירושונים|ابهام‌زدایی|消歧[義义](?:頁|页)?|aimai|"
    r"(?:[^{}|\s]{0,9}の)?曖昧さ回避|동음이의(?: 문서)?|동명이인|"
    r"(?:trang )?định hướng|argipen|razdvojba|razločitev|nozīmju atdalīšana|"
    r"täpsustus(?:lehekülg)?|apartigilo|homónimos|बहुविकल्पी(?: शब्द)?|"
    r"দ্ব্যর্থতা নিরসন|பக்கவழி நெறிப்படுத்தல்|అయోమయ నివృత్తి|വിവക്ഷകൾ|แก้(?:ความ)?กำกวม"
    r")\s{0,9}(?:\||\}\})",
    re.IGNORECASE,
)
_DISAMBIGUATION_TITLE = re.compile(
    r"\((?:disambiguation|begriffsklärung|homonymie|desambiguación|disambigua|"
    r"desambiguação|doorverwijspagina|ujednoznacznienie|значения|значення|"
    r"rozcestník|olika betydelser|消歧[義义]|曖昧さ回避|동음이의)\)$",
    re.IGNORECASE,
)


class PageParser:
    """Calls `wikitext.extract` in another process, started when needed."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None

    def extract(self, text: str, hidden: frozenset[str]) -> list[str] | str:
        """Returns the paragraphs of a page, or the reason to drop the page.

        The parser may take 10 seconds of CPU time; a limit on wall time would
        drop pages on a busy machine. Too much time or too deep nesting are
        reasons to drop the page. Raises `WorkerEndedError` if the parser
        process ends for another reason.
        """
        self.start()
        try:
            self._pipe.send((text, hidden, _MAX_SECONDS))
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            return self._reason(error)

    def start(self) -> int:
        """Starts the process if it does not run; returns its process id."""
        if self._process is None:
            import mwparserfromhell  # noqa: F401

            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            # As a daemon, the parser process ends with this process.
            self._process = context.Process(
                target=serve, args=(other,), daemon=True
            )
            self._process.start()
            other.close()
        return self._process.pid

    def _reason(self, error: Exception) -> str:
        """Returns why the page ended the process, and forgets the process."""
        process, self._process = self._process, None
        self._pipe.close()
        process.join()
        status = process.exitcode
        if status == -signal.SIGPROF:
            return TOO_SLOW
        # Deep nesting overflows the C parser's stack, which raises SIGSEGV.
        if status == -signal.SIGSEGV:
            return TOO_DEEP
        raise WorkerEndedError(
            f"The parser of wikitext ended with status {status}, perhaps "
            "because memory ran out; rerun the same command to resume, with "
            "fewer --num_processes if it happens again."
        ) from error


_shared_parser = functools.cache(PageParser)  # One parser in each process.


def serve(pipe: Connection) -> None:
    """Parses the pages that arrive, until the pipe is closed."""
    from bert_tf.corpus import wikitext

    # Ctrl-C reaches all processes: ignore it, as the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keep SIGPROF's default action: a Python handler could not stop C code.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while True:
        try:
            text, hidden, seconds = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            result = wikitext.extract(text, hidden)
        except RecursionError:
            result = TOO_DEEP
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(result)


def read(
    chunk: Chunk, replace_invalid: bool = False
) -> Iterator[Document | Dropped]:
    """Yields articles as `Document`, and other pages as `Dropped`.

    Raises:
      UserError: If the XML is broken, if it is not UTF-8 and `replace_invalid`
        is False, or if mwparserfromhell is missing.
    """
    readers.decode(chunk, replace_invalid)
    parser = _shared_parser()
    header = chunk.header.decode("utf-8", "replace")
    namespaces = {
        html.unescape(name).lower(): key
        for key, name in _NAMESPACE.findall(header)
    }
    hidden = _HIDDEN_NAMES.union(
        name for name, key in namespaces.items() if key in _HIDDEN
    )
    start = 0
    while (end := chunk.payload.find(_END, start)) >= 0:
        stop = end + len(_END)
        page = chunk.payload[start:stop]
        if replace_invalid:
            page = page.decode("utf-8", "replace").encode()
        title, number, text, reason = _parse(page, chunk, start, namespaces)
        found = reason or parser.extract(text, hidden)
        if isinstance(found, str):
            yield Dropped(number, found, title)
        else:
            yield Document(number, tuple(found))
        start = stop
    rest = chunk.payload[start:].strip()
    if rest not in (b"", b"</mediawiki>"):
        raise _broken(chunk, start, f"{rest[:40]!r} follows the last page")


def _parse(
    page: bytes, chunk: Chunk, start: int, namespaces: dict[str, str]
) -> tuple[str, str, str, str | None]:
    """Returns title, id, text, and the reason to drop the page or None."""
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise _broken(chunk, start, str(error)) from error
    if root.tag != "page" or root.find("title") is None:
        raise _broken(chunk, start, "a page has no title")
    title = root.findtext("title") or ""
    # Some dumps have all revisions of a page; take the last revision.
    revision = (root.findall("revision") or [root])[-1]
    text = revision.findtext("text") or ""
    reason = None
    prefix = title.partition(":")[0].lower() if ":" in title else ""
    # Dumps before 2012 have no <ns>, so the title's prefix decides.
    if (root.findtext("ns") or namespaces.get(prefix, "0")) != "0":
        reason = OTHER_NAMESPACE
    elif root.find("redirect") is not None or re.match(
        # Keywords in Hindi and Thai have vowel signs; \w+ would not match them.
        r"\s*#\w[^\s:\[\]]*\s*:?\s*\[\[[^\]\n]+\]\]",
        text,
    ):
        reason = REDIRECT
    elif revision.findtext("model") not in (None, "", "wikitext"):
        reason = OTHER_MODEL
    elif _DISAMBIGUATION_TITLE.search(title) or _DISAMBIGUATION.search(text):
        reason = DISAMBIGUATION
    return title, root.findtext("id") or title, text, reason


def _broken(chunk: Chunk, start: int, reason: str) -> UserError:
    return UserError(
        f"{chunk.path} is broken XML in the page at byte {chunk.start + start} "
        f"of the decompressed file: {reason}; download it again."
    )
