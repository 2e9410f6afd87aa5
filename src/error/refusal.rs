//! Error replies of Redis: their codes, the advice for each, and redirects of a cluster.

use std::fmt;

use super::kind::Retryability;
use crate::util::text::without_controls;

/// An error reply: the first word, and the rest of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) detail: String,
}

/// Where, or when, to send a command again that a node has not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// To this node, which serves the slot from now on.
    Moved(u16, NodeAddress),
    /// To this node, for this command alone and after an `ASKING`.
    Ask(NodeAddress),
    /// After a pause, to the same node or to another one.
    RetryLater,
}

/// The address of a node in a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    /// The host; `None` means the host of the node that sent the redirect.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

/// The words for a command or a key that a script may not use, up to Redis 7.0 and later.
const FORBIDDEN_IN_SCRIPT: [&str; 2] = ["executing the script can't", "ACL failure in script"];

const PERMISSIONS: &str = "docs/permissions.md lists the required permissions";

impl Refusal {
    /// Reads an error reply.
    ///
    /// Redis before 7 wraps the error of a command inside a script, with its code in the middle of
    /// the text; the wrapping is removed. A command that a script may not run has no code of its
    /// own: it gets `NOPERM`, the code outside of scripts. Control characters become escapes:
    /// errors, logs and terminals show the text.
    pub(crate) fn new(code: &str, detail: &str) -> Refusal {
        let inner = if code == "ERR" { unwrapped(detail) } else { None };
        let (code, detail) = inner.unwrap_or((code, detail));
        let is_forbidden = |words: &&str| detail.contains(words);
        let is_of_permissions = code == "ERR" && FORBIDDEN_IN_SCRIPT.iter().any(is_forbidden);
        let code = if is_of_permissions { "NOPERM" } else { code };
        let [code, detail] = [code, detail].map(|text| without_controls(text).into_owned());
        Refusal { code, detail }
    }

    /// Returns what ends the refusal, and the advice for its reader.
    pub(super) fn advice(&self) -> (Retryability, &'static str) {
        use Retryability::{Final, Login, Recoverable, Transient};
        let has = |text| self.detail.contains(text);
        match self.code.as_str() {
            "LOADING" => (Transient, "the server is loading its data; try again later"),
            "BUSY" => (Transient, "a script runs for too long; end it with SCRIPT KILL"),
            "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => (Transient, "try again later"),
            "READONLY" => (Transient, "the server is a replica; connect to the master"),
            "OOM" => (Recoverable, "the server is full; raise maxmemory or delete data"),
            "MISCONF" => (Recoverable, "the server cannot save its data; see its log"),
            "NOREPLICAS" => (Recoverable, "too few replicas are in good order"),
            "NOAUTH" => {
                (Login, "the server requires a password; add it to the URL, or use Builder::login")
            }
            "WRONGPASS" => (Login, "check the user and the password in the URL"),
            "WRONGTYPE" => (Final, "the key holds a value of another kind"),
            "NOPERM" => (Final, PERMISSIONS),
            "MOVED" | "ASK" => (Final, "the server is a cluster node; see Builder::cluster"),
            "CROSSSLOT" => (Final, "the keys of one name lie in different slots"),
            "NOSCRIPT" => (Recoverable, "the server drops scripts as fast as they are loaded"),
            // The master became a replica while it waited for replicas, or an operator ended that.
            "UNBLOCKED" => (Transient, "the server may be a replica now"),
            // The others have no code of their own.
            _ if self.is_slot_migrating() => (Transient, "a slot is moving; try again later"),
            _ if self.detail.starts_with("max number of clients") => {
                (Transient, "raise maxclients, or close connections")
            }
            _ if self.detail.starts_with("unknown command") && has("SENTINEL") => {
                (Final, "the server is no sentinel; see Builder::single")
            }
            _ if has("ermission") => (Final, PERMISSIONS),
            _ => (Final, ""),
        }
    }

    /// Returns whether the refusal ends by itself.
    pub(crate) fn is_transient(&self) -> bool {
        self.advice().0 == Retryability::Transient
    }

    /// Returns whether a script met a key that had moved to another node.
    ///
    /// The slot of the key is moving. The earlier writes of the script stay.
    pub(crate) fn is_slot_migrating(&self) -> bool {
        self.detail.contains("non local key")
    }

    /// Returns where or when to send the command again, or `None` without a redirect.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        match self.code.as_str() {
            "MOVED" => self.address().map(|(slot, node)| Redirect::Moved(slot, node)),
            "ASK" => self.address().map(|(_, node)| Redirect::Ask(node)),
            "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => Some(Redirect::RetryLater),
            _ if self.is_slot_migrating() => Some(Redirect::RetryLater),
            _ => None,
        }
    }

    /// Reads `<slot> <host>:<port>`; newer servers append more words.
    fn address(&self) -> Option<(u16, NodeAddress)> {
        let (slot, address) = self.detail.split_once(' ')?;
        let (host, port) = address.split(' ').next()?.rsplit_once(':')?;
        let host = (!host.is_empty() && host != "?").then(|| host.to_owned());
        Some((slot.parse().ok()?, NodeAddress { host, port: port.parse().ok()? }))
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

/// Returns the code and the text that Redis before 7 wraps when a script fails.
///
/// The form is `Error running script (call to <name>): @user_script:<line>: <text>`. An error of
/// the server itself repeats `@user_script: <line>: ` and has a `-` before its code. `None` if the
/// text has no code.
fn unwrapped(detail: &str) -> Option<(&str, &str)> {
    let (_, inner) = detail.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
    let (_line, inner) = inner.split_once(": ")?;
    let (code, rest) = inner.split_once(' ').unwrap_or((inner, ""));
    let code = code.strip_prefix('-').unwrap_or(code);
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some((code, rest))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_str() {
            "" => write!(f, "{}", self.code),
            detail => write!(f, "{} {detail}", self.code),
        }
    }
}
