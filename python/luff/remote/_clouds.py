"""What is particular to each kind of object store: where its server is, and by what it knows that an object changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from luff.remote._errors import NotUntilMended

if TYPE_CHECKING:
    from collections.abc import Mapping

_AZURITE = "http://127.0.0.1:10000"  # where obstore looks for an emulator of Azure unless it is told
_NO_GENERATION = "1"  # one that no object has: they count microseconds

_NO_KEY = (
    "the key by which the store is to encrypt {}; mend sse_kms_key_id of [bucket], AWS_SSE_KMS_KEY_ID, or it"
)

#: What a server says for good: asking again changes nothing.
FINAL = {
    "NoSuchBucket": "there is no such bucket; make it, or mend the URL",
    "AccessDenied": "no right to do this; see the credentials and the policy of the bucket (docs/buckets.md)",
    "InvalidAccessKeyId": "the credentials are not known to the store",
    "SignatureDoesNotMatch": "the secret key is not the one of the access key",
    "PermanentRedirect": "the bucket lies in another region; set AWS_REGION to it",
    "incorrectly configured region": "the bucket lies in another region; set AWS_REGION to it",  # as obstore says it
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set AWS_REGION to it",
    "IllegalLocationConstraint": "the bucket lies in another region; set AWS_REGION to it",
    "KMS.NotFoundException": _NO_KEY.format("does not exist"),
    "KMS.DisabledException": _NO_KEY.format("is disabled"),
    "KMS.KMSInvalidStateException": _NO_KEY.format("is to be deleted, or cannot be used now"),
}

_EXPIRED = (
    "the credentials have expired; renew them (an upload keeps those of its environment: `luff sync RUN URL` goes on "
    "with new ones)"
)
_SKEWED = "the clock of this machine is more than 15 minutes off, so the store refuses it; set it"
_PASSING = {  # while the job runs; and what to do
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": _SKEWED,
    "RequestExpired": _SKEWED,
}

#: What obstore puts into headers as it is. Not all that it reads: a variable that is not used stops nothing.
_IN_HEADERS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_BEARER_TOKEN", "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME",),
}
_OF_GOOGLE = (
    "GOOGLE_APPLICATION_CREDENTIALS (a file that can be read, of a service account or a user; other kinds are not "
    "known) and GOOGLE_SERVICE_ACCOUNT_KEY (the text of one)"
)
#: What obstore says of credentials before anything is asked, and where they come from.
_CREDENTIALS = {
    "service account file": _OF_GOOGLE,
    "credential error": _OF_GOOGLE,
    "pem file": _OF_GOOGLE,
    "Invalid Access Key": "AZURE_STORAGE_ACCOUNT_KEY (base64)",
    "SAS key": "AZURE_STORAGE_SAS_TOKEN",
}


def passing(answer: str, where: str) -> NotUntilMended | None:
    """What to say of a refusal that may pass while the job runs. `answer`: in lower case."""
    for sign, remedy in _PASSING.items():
        if f"<code>{sign}</code>".lower() in answer:
            return NotUntilMended(f"{remedy}: {where}")
    return None


def configuration(url: str) -> tuple[dict[str, Any], bool]:
    """What obstore is to be told besides what it finds in the environment, and whether the server has no TLS.

    A server without TLS is one of your own: nothing else has such an address.
    """
    found: dict[str, Any] = {}
    if url.startswith("s3://"):
        endpoint = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        if endpoint:  # has no name for each bucket
            found = {"aws_endpoint": endpoint, "aws_virtual_hosted_style_request": "false"}
        if not _first("AWS_REGION", "AWS_DEFAULT_REGION"):
            found["aws_region"] = "us-east-1"
    elif url.startswith("gs://"):
        endpoint = _first("GOOGLE_BASE_URL")
    elif _is_set("AZURE_STORAGE_USE_EMULATOR"):
        endpoint = _first("AZURITE_BLOB_STORAGE_URL") or _AZURITE
    else:
        endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return found, endpoint.startswith("http://")


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "on", "yes", "y")


def tag_of(url: str, answer: Mapping[str, Any]) -> str:
    """By what a store knows this state of an object again: its etag; of Google's, its generation, too.

    Google's conditions on a put are about the generation, those on a get about the etag.
    """
    etag, generation = answer.get("e_tag") or "", answer.get("version") or ""
    return f"{generation} {etag}" if url.startswith("gs://") and generation else etag


def etag_of(tag: str) -> str:
    """The etag in it, for the condition of a get."""
    return tag.rpartition(" ")[2]


def unchanged_since(url: str, tag: str, bare: bool) -> dict[str, str]:
    """The condition of a put, as obstore takes it. `bare`: the etag without quotes."""
    generation, _, etag = tag.rpartition(" ")
    if url.startswith("gs://"):
        return {"e_tag": etag, "version": generation or _NO_GENERATION}
    return {"e_tag": etag.strip('"') if bare else etag}


def broken_variable(url: str) -> str:
    """The variable of the environment that has a line break or its like, on which obstore panics; "" if none has."""
    for name in _IN_HEADERS[url[:2]]:
        if any((sign < " " and sign != "\t") or sign == "\x7f" for sign in os.environ.get(name, "")):
            return name
    return ""


def short(error: BaseException) -> str:
    """What obstore says for people; behind it come the insides of its errors."""
    return " ".join(str(error).split()).split(" Debug source:")[0][:300]


def unusable(url: str, reason: str) -> str:
    """Why nothing can be asked of a URL, before anything was."""
    if "Account must be specified" in reason:
        return f"whose storage is it? set AZURE_STORAGE_ACCOUNT_NAME: {url}"
    return f"no store has this URL: {url} ({reason})"


def bad_credentials(url: str, reason: str) -> str:
    """What to say if obstore cannot use the credentials, "" if that is not it. What it says may hold a part of them."""
    for sign, remedy in _CREDENTIALS.items():
        if sign in reason:
            return f"the credentials of {url[:5]} cannot be used; see {remedy}: {url}"
    return ""
