"""Stores of objects: a folder (``file://``), or what obstore reaches (``s3://``, ``gs://``, ``az://``).

A store has whole objects by key, two conditional puts (absent; unchanged since an etag), and lists. Every method is
bounded in time and memory, thread-safe, and raises a `BucketError`.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from luff.remote import _clouds
from luff.remote._asides import drop_aside, remove_asides, write_aside
from luff.remote._errors import Absent, BucketError, Conflict, Refused, TooLarge, Unreachable, WrongUrl
from luff.remote._folder_lock import FolderLock
from luff.remote._places import refuse_for_good

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMES = ("file", "s3", "gs", "az")
INSTALL = "pip install 'luff[remote]'"
MAX_LISTED = 1_000_000
# Seconds: of a request, of connecting, of all attempts of a request that obstore makes by itself.
_REQUEST_S, _CONNECT_S, _RETRY_S, _RETRIES = 30, 10, 20, 2
_PAGE = 1000  # objects that a store tells with one request
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ATTEMPTS = 5
_NO_ETAG = '"0123456789abcdef0123456789abcdef"'  # that no object has
Put = TypeVar("Put")
_MAX_DEPTH = 8  # of folders below a prefix; Luff makes three


class Listed(NamedTuple):
    """An object in a list."""

    name: str  # without the prefix
    etag: str  # changes when the object does; also what a store without etags tells of time and size
    size: int
    modified_unix_ns: int  # by the store's clock


class Store(ABC):
    """Counts what it asks for: `requests`, of these `puts` (and lists, which cost as much), and `sent` (bytes put)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = 0
        self.puts = 0
        self.sent = 0
        self.received = 0
        self._counting = threading.Lock()

    def _count(self, sent: int = 0, received: int = 0, requests: int = 1, puts: int = 0) -> None:
        with self._counting:
            self.requests += requests
            self.puts += puts
            self.sent += sent
            self.received += received

    @abstractmethod
    def get(self, key: str, most: int, unless: str = "") -> tuple[bytes, str] | None:
        """Returns bytes and etag; None if the etag is still `unless`. TooLarge beyond `most` bytes."""

    @abstractmethod
    def get_range(self, key: str, begin: int, end: int, size: int | None = None) -> bytes:
        """Returns exactly these bytes. `size`: of the whole object, if its name does not say so."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes or replaces an object."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> str:
        """Writes an object that is not there; Conflict if it is. Returns its etag."""

    @abstractmethod
    def put_if(self, key: str, data: bytes, etag: str) -> str:
        """Replaces an object; Conflict if its etag is another one. Returns the new one."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Removes an object, or nothing if it is not there."""

    @abstractmethod
    def delete_all(self, keys: list[str]) -> None:
        """Removes objects, a thousand with each request where the store can. None need be there."""

    def clean(self, prefix: str, older_s: float, within_s: float) -> None:  # noqa: B027
        """Removes what puts of processes that died have left below a prefix that ends with "/". Never raises.

        `within_s`: what it has not come to then stays.

        A store of objects has no such thing.
        """

    @abstractmethod
    def children(self, prefix: str) -> list[str]:
        """Names directly below a prefix that ends with "/"."""

    @abstractmethod
    def objects(self, prefix: str, most: int) -> list[Listed]:
        """The objects below a prefix that ends with "/", at most so many, a thousand with each request."""


class FolderStore(Store):
    """A folder as a bucket. Objects are files; conditional puts hold a lock of the folder (`_folder_lock`).

    Others may have put anything there. So no link below the folder is followed: a key is opened name by name.
    A `durable` one has what was put on its disk before a put returns, and what was put before the first one, too.
    """

    def __init__(self, url: str, root: str, durable: bool = False) -> None:
        super().__init__(url)
        self._root = root
        self._durable = durable
        self._settling = threading.Lock()
        self._settled = not durable
        self._lock = FolderLock(self._unlink)

    @contextmanager
    def _folder(self, names: list[str], make: bool = False) -> Iterator[int]:
        """A descriptor of a folder below the root. Refused if a link is on the way, or something else."""
        if make:
            self._make_root()
        folder = os.open(self._root, _FOLDER)
        try:
            for at in range(len(names)):
                inner = self._inner(folder, "/".join(names[: at + 1]), make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _make_root(self) -> None:
        missing = self._root
        while self._durable and not os.path.isdir(missing):
            missing = os.path.dirname(missing)
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
        except OSError as error:
            refuse_for_good(self.url, error)
            raise
        made = self._root
        while self._durable and made != missing:
            made = os.path.dirname(made)
            above = os.open(made, _FOLDER)
            try:
                self._keep(above)
            finally:
                os.close(above)

    def _keep(self, fd: int) -> None:
        """Waits until an open file, or the names in an open folder, are on the disk."""
        if not self._durable:
            return
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # what some file systems say of folders
                raise

    def _settle(self, folder: int) -> None:
        """Has what others have put into the bucket's file system on the disk: an upload that went on names it."""
        with self._settling:
            if self._settled:
                return
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syncfs(folder) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
            self._settled = True

    def _inner(self, folder: int, key: str, make: bool = False) -> int:
        """Opens the folder of a key in the one above it."""
        name = key.rsplit("/", 1)[-1]
        if make:
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
                self._keep(folder)
            except FileExistsError:
                pass
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except NotADirectoryError:  # also of a link
            raise Refused(f"a link or a file where the bucket has folders: {self.url}/{key}") from None

    @contextmanager
    def _place(self, key: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of an object, and its name there."""
        *folders, name = key.split("/")
        try:
            with self._folder(folders, make) as folder:
                yield folder, name
        except OSError as error:
            raise self._told(error, key) from None

    def _open(self, folder: int, name: str, key: str) -> BinaryIO:
        """Opens an object. Opening a pipe would wait for ever."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refused(f"an object of the bucket is no file: {self.url}/{key}")
        return os.fdopen(fd, "rb")

    def _told(self, error: OSError, key: str) -> BucketError:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return Absent(f"there is no such object: {self.url}/{key}")
        if error.errno == errno.ELOOP:
            return Refused(f"a link in the bucket; Luff makes none: {self.url}/{key}")
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a socket, a folder
            return Refused(f"an object of the bucket is no file: {self.url}/{key}")
        where = self._root if error.filename == self._root else f"{self.url}/{key}"
        text = f"{error.strerror}: {where}"
        if isinstance(error, PermissionError):
            return Refused(
                f"{text}; the folder of the bucket must be yours to read, and to write for `luff sync`"
            )
        return Unreachable(text)

    @staticmethod
    def _etag(info: os.stat_result) -> str:
        return f"{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}"

    def get(self, key: str, most: int, unless: str = "") -> tuple[bytes, str] | None:
        received = 0
        try:
            with self._place(key) as place, self._open(*place, key) as file:
                info = os.fstat(file.fileno())
                etag = self._etag(info)
                if unless and etag == unless:
                    return None
                if info.st_size > most:
                    raise TooLarge(
                        f"an object has {info.st_size} bytes, Luff writes at most {most}: {self.url}/{key}"
                    )
                data = file.read(min(most, info.st_size))  # `most` would be reserved
                received = len(data)
            return data, etag
        finally:
            self._count(received=received)

    def get_range(self, key: str, begin: int, end: int, size: int | None = None) -> bytes:  # noqa: ARG002
        with self._place(key) as place, self._open(*place, key) as file:
            data = os.pread(file.fileno(), end - begin, begin)
        self._count(received=len(data))
        if len(data) != end - begin:
            raise Refused(f"an object is shorter than its name says: {self.url}/{key}")
        return data

    def _write_aside(self, folder: int, name: str, data: bytes) -> tuple[str, str]:
        """Writes an object beside its place, under a name that nothing has. Returns that, and the etag."""
        self._settle(folder)
        aside, info = write_aside(folder, name, data, self._keep)
        return aside, self._etag(info)

    def _write(self, folder: int, name: str, data: bytes) -> None:
        aside, _ = self._write_aside(folder, name, data)
        self._publish(folder, aside, name)

    def _publish(self, folder: int, aside: str, name: str) -> None:
        try:
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            drop_aside(folder, aside)
            raise

    def _conditional(self, key: str, data: bytes, allowed: Callable[[str], bool]) -> str:
        def write(folder: int, name: str) -> str:
            aside, etag = self._write_aside(folder, name, data)
            try:
                with self._folder([]) as root, self._lock.held(root, key[: -len(name)] + aside):
                    try:
                        now = self._etag(os.stat(name, dir_fd=folder, follow_symlinks=False))
                    except FileNotFoundError:
                        now = ""
                    if not allowed(now):
                        raise Conflict(f"the object has changed: {self.url}/{key}")
                    self._publish(folder, aside, name)
            except BaseException:
                drop_aside(folder, aside)
                raise
            return etag

        etag = self._making(key, write)
        self._count(sent=len(data), puts=1)
        return etag

    def _making(self, key: str, write: Callable[[int, str], Put]) -> Put:
        """Writes an object into its folder, which is made; somebody who prunes may remove it just then.

        Or one that waited for the lock has removed what was to become the object, since we had the lock for too long.
        """
        for _ in range(_ATTEMPTS):
            try:
                with self._place(key, make=True) as (folder, name):
                    put = write(folder, name)
                    self._keep(folder)
                    return put
            except Absent:
                continue
        raise Unreachable(f"what is put is removed again and again: {self.url}/{key}")

    def put(self, key: str, data: bytes) -> None:
        self._making(key, lambda folder, name: self._write(folder, name, data))
        self._count(sent=len(data), puts=1)

    def put_new(self, key: str, data: bytes) -> str:
        return self._conditional(key, data, lambda now: now == "")

    def put_if(self, key: str, data: bytes, etag: str) -> str:
        return self._conditional(key, data, lambda now: now == etag)

    def delete(self, key: str) -> None:
        self._count()
        self._unlink(key)

    def delete_all(self, keys: list[str]) -> None:
        folders = set()
        for key in keys:
            self.delete(key)
            folders.add(tuple(key.split("/")[:-1]))
        for names in sorted(folders, key=len, reverse=True):
            for length in range(len(names), 0, -1):  # a store of objects has no empty folders
                try:
                    with self._folder(list(names[: length - 1])) as above:
                        os.rmdir(names[length - 1], dir_fd=above)
                except (OSError, Refused):
                    break

    def _unlink(self, key: str) -> None:
        try:
            with self._place(key) as (folder, name):
                os.unlink(name, dir_fd=folder)  # of a link, the link
        except Absent:
            pass

    def clean(self, prefix: str, older_s: float, within_s: float) -> None:
        end = time.monotonic() + within_s
        try:
            with self._place(prefix) as (folder, _):
                remove_asides(folder, time.time_ns() - round(older_s * 1e9), end)
        except BucketError:  # there is nothing, or it is not ours to remove
            pass

    def _listed(self, folder: int) -> list[os.DirEntry[str]]:
        """Entries of an open folder, which stays open while they are asked for more than their names."""
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.endswith("~")), key=lambda e: e.name)

    def children(self, prefix: str) -> list[str]:
        try:
            with self._place(prefix) as (folder, _):
                return [entry.name for entry in self._listed(folder)]
        except Absent:
            return []
        finally:
            self._count(puts=1)

    def objects(self, prefix: str, most: int) -> list[Listed]:
        found: list[Listed] = []
        try:
            with self._place(prefix) as (folder, _):
                self._below(folder, prefix, "", most, found)
        except Absent:
            pass
        finally:  # as many as a store of objects is asked for the same list
            pages = max(1, -(-len(found) // _PAGE))
            self._count(requests=pages, puts=pages)
        return found

    def _below(self, folder: int, prefix: str, name: str, most: int, found: list[Listed]) -> None:
        if name.count("/") > _MAX_DEPTH:
            raise Refused(f"folders lie deeper than Luff makes them: {self.url}/{prefix}{name[:100]}")
        for entry in self._listed(folder):
            if len(found) >= most:
                return
            try:
                if entry.is_dir(follow_symlinks=False):
                    inner = self._inner(folder, f"{prefix}{name}{entry.name}")
                    try:
                        self._below(inner, prefix, f"{name}{entry.name}/", most, found)
                    finally:
                        os.close(inner)
                    continue
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed meanwhile
                continue
            found.append(Listed(name + entry.name, self._etag(info), info.st_size, info.st_mtime_ns))


class RemoteStore(Store):
    """A bucket behind obstore, which finds credentials in its own ways: environment, instance, web identity."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import obstore
            from obstore import exceptions, store
        except ImportError:
            scheme = url.split(":", 1)[0]
            raise Refused(f"{scheme}:// needs obstore; install it: {INSTALL}") from None
        from datetime import timedelta

        self._obstore = obstore
        self._exceptions = exceptions
        self._bare = False  # conditions have etags without quotes
        if variable := _clouds.broken_variable(url):
            raise Refused(f"{variable} has a line break or another control character; take it out: {url}")
        config, no_tls = _clouds.configuration(url)
        options: Any = {
            "timeout": timedelta(seconds=_REQUEST_S),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "allow_http": no_tls,
        }
        settings: Any = config or None
        try:
            self._store: Any = store.from_url(
                url,
                config=settings,
                client_options=options,
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
            )
        except Exception as error:
            reason = _clouds.short(error)
            if bad := _clouds.bad_credentials(url, reason):
                raise Refused(bad) from None
            raise WrongUrl(_clouds.unusable(url, reason)) from None

    def _told(self, error: Exception, key: str) -> BucketError:
        kinds = self._exceptions
        where = f"{self.url}/{key}"
        text = _clouds.short(error)
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            return Refused(f"there is no such bucket; make it, or mend the URL: {self.url}")
        lowered = str(error).lower()
        if passing := _clouds.passing(lowered, where):
            return passing
        if isinstance(error, (FileNotFoundError, kinds.NotFoundError)):
            return Absent(f"there is no such object: {where}")
        if isinstance(error, (kinds.AlreadyExistsError, kinds.PreconditionError)):
            return Conflict(f"the object has changed: {where}")
        if isinstance(error, (PermissionError, kinds.PermissionDeniedError, kinds.UnauthenticatedError)):
            return Refused(
                f"no right to do this; see the credentials and the policy of the bucket (docs/buckets.md): {where}"
            )
        if isinstance(error, (kinds.NotSupportedError, NotImplementedError)):
            return Refused(f"the store cannot do this ({text}): {where}")
        for sign, remedy in _clouds.FINAL.items():
            if sign.lower() in lowered:
                return Refused(f"{remedy}: {where}")
        return Unreachable(f"{text}: {where}")

    def _ask(self, key: str, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except BucketError:
            raise
        except self._exceptions.NotModifiedError:
            return None
        except Exception as error:
            raise self._told(error, key) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust; what it says may hold a part of a secret
                raise
            raise Refused(
                "obstore cannot make a request of the variables of the environment; look for line breaks in them: "
                f"{self.url}/{key}"
            ) from None

    def get(self, key: str, most: int, unless: str = "") -> tuple[bytes, str] | None:
        def request() -> tuple[bytes, str] | None:
            options: Any = {"if_none_match": _clouds.etag_of(unless)} if unless else {}
            found = self._obstore.get(self._store, key, options=options)
            etag, size = _clouds.tag_of(self.url, found.meta), found.meta["size"]
            if unless and etag == unless:  # of stores that do not know the condition
                return None
            if size > most:
                raise TooLarge(f"an object has {size} bytes, Luff writes at most {most}: {self.url}/{key}")
            return bytes(found.bytes()), etag

        try:
            found: tuple[bytes, str] | None = self._ask(key, request)
        finally:
            self._count()
        if found is not None:
            self._count(received=len(found[0]), requests=0)
        return found

    def get_range(self, key: str, begin: int, end: int, size: int | None = None) -> bytes:  # noqa: ARG002
        data = bytes(self._ask(key, lambda: self._obstore.get_range(self._store, key, start=begin, end=end)))
        self._count(received=len(data))
        if len(data) != end - begin:
            raise Refused(f"an object is shorter than its name says: {self.url}/{key}")
        return data

    def _put(self, key: str, data: bytes, mode: Any) -> str:
        self._count(sent=len(data), puts=1)
        done = self._ask(
            key, lambda: self._obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        )
        return _clouds.tag_of(self.url, done) if done else ""

    def put(self, key: str, data: bytes) -> None:
        try:
            self._put(key, data, "overwrite")
        except Conflict:  # a 409; for good only where something but our condition stands against it
            raise Unreachable(
                "the store refuses to replace an object, as while another put of it is under way; if it goes on, see "
                f"whether the bucket locks or retains objects: {self.url}/{key}"
            ) from None

    def put_new(self, key: str, data: bytes) -> str:
        return self._put(key, data, "create")

    def put_if(self, key: str, data: bytes, etag: str) -> str:
        try:
            return self._put(key, data, _clouds.unchanged_since(self.url, etag, self._bare))
        except Conflict:
            if self._bare or not self._is_still(key, etag):
                raise
        # Ceph's gateway knows an etag in a condition without its quotes only. A store that ignores such a one must not
        # be taken for it.
        try:
            self._put(key, data, _clouds.unchanged_since(self.url, _NO_ETAG, bare=True))
        except Conflict:
            self._bare = True
            return self._put(key, data, _clouds.unchanged_since(self.url, etag, self._bare))
        raise Refused(
            f"the store refuses etags with quotes in conditional puts and does not obey them without: {self.url}"
        )

    def _is_still(self, key: str, etag: str) -> bool:
        """Whether a condition was refused that holds, so far as a look can tell."""
        if not self.url.startswith("s3://"):
            return False
        try:
            return (
                _clouds.tag_of(self.url, self._ask(key, lambda: self._obstore.head(self._store, key))) == etag
            )
        except BucketError:
            return False
        finally:
            self._count()

    def delete(self, key: str) -> None:
        self._count()
        try:
            self._ask(key, lambda: self._obstore.delete(self._store, key))
        except Absent:
            pass

    def delete_all(self, keys: list[str]) -> None:
        for at in range(0, len(keys), _PAGE):
            page = keys[at : at + _PAGE]
            self._count()
            try:
                self._ask(page[0], lambda page=page: self._obstore.delete(self._store, page))  # type: ignore[misc]
            except Absent:  # of a store that removes one after the other
                for key in page:
                    self.delete(key)

    def _listed(self, prefix: str) -> Any:
        self._count(puts=1)
        return self._ask(prefix, lambda: self._obstore.list_with_delimiter(self._store, prefix.rstrip("/")))

    def children(self, prefix: str) -> list[str]:
        listed = self._listed(prefix)
        names = [one["path"].rsplit("/", 1)[-1] for one in listed["objects"]]
        names += [path.rstrip("/").rsplit("/", 1)[-1] for path in listed["common_prefixes"]]
        return sorted(names[:MAX_LISTED])

    def objects(self, prefix: str, most: int) -> list[Listed]:
        pages = self._ask(
            prefix, lambda: self._obstore.list(self._store, prefix.rstrip("/"), chunk_size=_PAGE)
        )
        found: list[Listed] = []
        while len(found) < most:
            self._count(puts=1)
            page = self._ask(prefix, lambda: next(pages, None))
            if not page:
                break
            for one in page:
                name, unix_ns = one["path"], round(one["last_modified"].timestamp() * 1e9)
                etag = one.get("e_tag") or f"{unix_ns}-{one['size']}"
                found.append(Listed(name[name.find(prefix) + len(prefix) :], etag, one["size"], unix_ns))
            if len(page) < _PAGE:
                break
        return found[:most]


def normal_url(url: str) -> str:
    """The URL without slashes at its end. WrongUrl if it names no bucket."""
    if not url.isprintable():
        raise WrongUrl(f"found control characters in a bucket's URL: {url!r}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise WrongUrl(f"no store has this URL: {url}") from None
    if parts.scheme not in SCHEMES:
        raise WrongUrl(f"found {url}, expected one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise WrongUrl(
            "a bucket's URL has no user, password, query or fragment; credentials come from the environment"
        )
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise WrongUrl(f"a bucket's URL has no . and .. in its path: {url}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise WrongUrl(f"found {url}, expected file:///FOLDER with an absolute path")
    elif not parts.netloc:
        raise WrongUrl(f"found {url}, expected {parts.scheme}://BUCKET or {parts.scheme}://BUCKET/PREFIX")
    return url.rstrip("/") if parts.path.strip("/") or parts.scheme != "file" else "file:///"


def open_store(url: str, durable: bool = False) -> Store:
    """Opens the bucket of a URL; asks it nothing yet. Raises WrongUrl, or Refused where obstore is missing or
    cannot use the credentials.

    `durable`: what was put outlives a power cut of this machine. Stores of objects promise that anyway.
    """
    url = normal_url(url)
    if url.startswith("file:"):
        return FolderStore(url, unquote(urlsplit(url).path), durable)
    return RemoteStore(url)


def check_installed(url: str) -> None:
    """Refused if the URL needs what is not installed."""
    if not url.startswith("file:") and importlib.util.find_spec("obstore") is None:
        raise Refused(f"{url.split(':', 1)[0]}:// needs obstore; install it: {INSTALL}")
