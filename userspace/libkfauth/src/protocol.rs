// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol of `kfi-authd`'s socket: JSON, one request per line, and one line per answer, in
//! order.
//!
//! ```text
//! > "list"
//! < {"grants":[{"id":7,"key":1,"uid":1000,…}]}
//! > {"grant":{"key":{"name":"compute"},"whom":{"uid":1000,"cgroup":"/job_17"},"lifetime":"8h"}}
//! < {"grant":8}
//! > {"revoke":{"grants":[8]}}
//! < {"revoked":1}
//! > {"check":{"key":{"name":"compute"},"pid":4711}}
//! < {"verdict":{"allowed":false,"why":"no job of the policy is about it"}}
//! > {"mode":"enforce"}
//! < {"error":{"what":"the mode is root's","errno":"EPERM"}}
//! ```
//!
//! Only root and members of the group that the policy names can connect (others: `EACCES`). No
//! answer contains the bytes of an auth key.

use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{AuthKey, Grant, Limits, Mode, Rule};

/// Default path of the socket.
pub const SOCKET: &str = "/run/kfi-authd/socket";
/// Maximum bytes of a request, with its line end.
pub const LINE_MAX: usize = 64 << 10;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Installs a grant: [`Answer::Grant`].
    Grant(GrantRequest),
    /// Changes a grant's limits or its end: [`Answer::Changed`].
    Change(ChangeRequest),
    /// Revokes grants: [`Answer::Revoked`].
    Revoke {
        /// Numbers of the grants. A grant that has ended is skipped.
        grants: Vec<u64>,
    },
    /// Lists all grants: [`Answer::Grants`].
    List,
    /// Evaluates the policy for a process, without side effects: [`Answer::Verdict`].
    Check(CheckRequest),
    /// Returns the authorization settings: [`Answer::Rule`].
    Rule,
    /// Sets the mode, for root only: [`Answer::Rule`].
    Mode(Mode),
}

/// An auth key, by its name in the policy or by its bytes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRef {
    /// Name of the auth key in the policy.
    Name(String),
    /// The bytes, as hexadecimal digits.
    #[serde(serialize_with = "digits")]
    Hex(AuthKey),
}

/// A grant to install.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GrantRequest {
    /// The auth key.
    pub key: KeyRef,
    /// The processes that the grant covers.
    pub whom: WhomRequest,
    /// Names of rights; empty: all rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<String>,
    /// Limits of the grant.
    #[serde(default)]
    pub limits: Limits,
    /// Lifetime, such as `8h`; omitted: the grant does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// The processes that a grant covers: those that meet all conditions that are set. At least one
/// must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct WhomRequest {
    /// The effective uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The effective gid, or a supplementary group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The control group or one above: its path from the hierarchy's root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The network namespace: path of a file that represents it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
}

/// A process, by its pid and its id. The id detects that the pid belongs to another process by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProcessRef {
    /// The pid, in the daemon's pid namespace.
    pub pid: u32,
    /// [`Process::id`](crate::Process::id): the inode number of its pidfd.
    pub id: u64,
}

/// A change of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ChangeRequest {
    /// Number of the grant.
    pub grant: u64,
    /// New values of all limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// New lifetime from now on, such as `8h`, or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// A request to evaluate the policy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CheckRequest {
    /// The auth key.
    pub key: KeyRef,
    /// The process.
    pub pid: u32,
    /// Names of rights; empty: all rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// The number of the grant that was installed.
    Grant(u64),
    /// The number of the grant that was changed.
    Changed(u64),
    /// Number of grants that were revoked.
    Revoked(u64),
    /// All grants.
    Grants(Vec<Grant>),
    /// The policy's decision.
    Verdict(Verdict),
    /// The authorization settings.
    Rule(Rule),
    /// The request failed.
    Error(Refusal),
}

/// A policy's decision on a process and an auth key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the process may use the auth key.
    pub allowed: bool,
    /// The part of the policy that decides, and its reason.
    pub why: String,
    /// Limits, if allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Lifetime of the grant, such as `1h`, if allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// The cause of a failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The cause in words.
    pub what: String,
    /// Name of the errno, such as `EBUSY`; empty if there is none.
    #[serde(default)]
    pub errno: String,
}

/// Serializes an auth key as hexadecimal digits.
fn digits<S: Serializer>(key: &AuthKey, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&key.expose_hex())
}

/// Serializes a request or an answer as a line.
///
/// # Errors
///
/// Never for the types of this module.
pub fn line(value: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    // Enough capacity from the start: a growing vector leaves copies of a key behind.
    let mut line = Zeroizing::new(Vec::with_capacity(4096));
    serde_json::to_writer(&mut *line, value)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn request_lines_of_the_documentation_are_read() {
        assert!(matches!(request("\"list\""), Request::List));
        assert!(matches!(request("\"rule\""), Request::Rule));
        assert!(matches!(
            request("{\"mode\":\"enforce\"}"),
            Request::Mode(Mode::Enforce)
        ));
        let text = "{\"grant\":{\"key\":{\"name\":\"compute\"},\"whom\":{\"uid\":1000,\"cgroup\":\"/job_17\"},\"lifetime\":\"8h\"}}";
        let Request::Grant(grant) = request(text) else {
            panic!("no grant")
        };
        assert_eq!(grant.whom.uid, Some(1000));
        assert!(matches!(grant.key, KeyRef::Name(name) if name == "compute"));
        for wrong in [
            "{\"grant\":{\"key\":{\"name\":\"x\"},\"whom\":{\"user\":1}}}",
            "{\"frobnicate\":{}}",
            "{\"mode\":\"off\"}",
            "{\"revoke\":{}}",
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn request_with_a_key_is_read_and_never_shown() {
        let key = AuthKey::from_hex("5ec2e75ec2e7").unwrap();
        let ask = Request::Check(CheckRequest {
            key: KeyRef::Hex(key.clone()),
            pid: 1,
            rights: Vec::new(),
        });
        assert!(!format!("{ask:?}").contains("5ec2"));
        let line = line(&ask).unwrap();
        assert_eq!(line.last(), Some(&b'\n'));
        let Request::Check(back) = serde_json::from_slice(&line).unwrap() else {
            panic!("no check")
        };
        assert!(matches!(back.key, KeyRef::Hex(same) if same == key));
        let wrong = "{\"check\":{\"key\":{\"hex\":\"5ec2e75ec2zz\"},\"pid\":1}}";
        let said = serde_json::from_str::<Request>(wrong)
            .unwrap_err()
            .to_string();
        assert!(!said.contains("5ec2"), "{said}");
    }
}
