// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy file's structure, and its conversion to a [`Policy`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kfauth::{parse_size, parse_time, AuthKey, Limits, Mode, Rights};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{AgentPart, Fault, Gives, Job, NamedKey, Names, Per, Policy, Who, LIFETIME};

/// The fault of a limit of 0.
const NOT_ZERO: &str = "a limit is 1 at least: to allow none, leave the right out";
/// Maximum length of the name of a key or a job.
const NAME_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPolicy {
    #[serde(default)]
    agent: RawAgent,
    #[serde(default)]
    keys: BTreeMap<Spanned<String>, Spanned<RawKey>>,
    #[serde(default, rename = "job")]
    jobs: Vec<Spanned<RawJob>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawAgent {
    mode: Option<Spanned<String>>,
    socket_group: Option<Spanned<Name>>,
    lifetime: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawKey {
    file: Option<Spanned<PathBuf>>,
    hex: Option<Spanned<AuthKey>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawJob {
    name: Spanned<String>,
    keys: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    users: Vec<Spanned<Name>>,
    #[serde(default)]
    groups: Vec<Spanned<Name>>,
    #[serde(default)]
    cgroups: Vec<Spanned<String>>,
    #[serde(default)]
    netns: Vec<Spanned<String>>,
    #[serde(default)]
    anybody: bool,
    #[serde(default)]
    deny: Option<Spanned<bool>>,
    rights: Option<Spanned<Vec<Spanned<String>>>>,
    limits: Option<Spanned<RawLimits>>,
    lifetime: Option<Spanned<String>>,
    per: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLimits {
    pinned: Option<Spanned<Name>>,
    keys: Option<Spanned<Name>>,
    endpoints: Option<Spanned<Name>>,
}

/// A name or a number.
enum Name {
    Text(String),
    Number(u64),
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a number from 0")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
                Ok(Name::Text(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Name, E> {
                match u64::try_from(number) {
                    Ok(number) => Ok(Name::Number(number)),
                    Err(_) => Err(E::custom(format!("{number} is not a number from 0"))),
                }
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name::Number(number))
            }
        }
        from.deserialize_any(Either)
    }
}

/// The faults found so far, and the text of the policy.
struct Faults<'a> {
    text: &'a str,
    all: Vec<Fault>,
}

impl Faults<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    /// Adds a fault at the line of a value.
    fn at<T>(&mut self, value: &Spanned<T>, what: impl Into<String>) {
        let line = self.line(value.span().start);
        self.all.push(Fault {
            line,
            what: what.into(),
        });
    }

    /// Returns the value of `result`, or records its error as a fault and returns `None`.
    fn take<T, U>(&mut self, at: &Spanned<U>, result: Result<T, String>) -> Option<T> {
        result.map_err(|what| self.at(at, what)).ok()
    }
}

/// Checks the name of a key or a job. Log lines contain these names.
fn name_is_fine(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-+@:".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fine) {
        return Ok(());
    }
    Err(format!(
        "a name has 1 to {NAME_MAX} letters, digits and characters of `._-+@:`"
    ))
}

/// Returns a user or group, given by number or by name.
fn id(name: &Name, look_up: impl Fn(&str) -> Result<u32, String>) -> Result<u32, String> {
    match name {
        // The kernel uses the last number for "none".
        Name::Number(n) => match u32::try_from(*n) {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(format!("{n} is not the number of a user or group")),
        },
        Name::Text(text) => look_up(text),
    }
}

/// Checks a control group's path from the root of the hierarchy, without a slash at its end.
fn cgroup(path: &str) -> Result<String, String> {
    let parts_fine = path
        .split('/')
        .skip(1)
        .all(|part| !part.is_empty() && part != "." && part != "..");
    if path == "/" || path.starts_with('/') && parts_fine {
        return Ok(path.to_owned());
    }
    Err(format!(
        "`{path}` is not a control group: its path from the root of the hierarchy is wanted, such as \
         /system.slice/slurmstepd.scope, without a slash at its end"
    ))
}

/// Checks the path of a file that represents a network namespace.
fn netns(path: &str) -> Result<PathBuf, String> {
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    Err(format!(
        "`{path}` is not a network namespace: a file is wanted, such as /run/netns/blue"
    ))
}

/// Reads a count, or `unlimited`.
fn count(value: &Name) -> Result<Option<u32>, String> {
    match value {
        Name::Number(0) => Err(NOT_ZERO.to_owned()),
        Name::Number(n) => match u32::try_from(*n) {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(format!("{n} is too much: write `unlimited`")),
        },
        Name::Text(text) if text == "unlimited" => Ok(None),
        Name::Text(text) => Err(format!("`{text}` is not a number or `unlimited`")),
    }
}

fn size(value: &Name) -> Result<Option<u64>, String> {
    let size = match value {
        Name::Number(n) => Some(*n),
        Name::Text(text) => parse_size(text)?,
    };
    if size == Some(0) {
        return Err(NOT_ZERO.to_owned());
    }
    Ok(size)
}

/// Reads the set of processes that share an answer.
fn per(text: &str) -> Result<Per, String> {
    match text {
        "process" => Ok(Per::Process),
        "user" => Ok(Per::User),
        "cgroup" => Ok(Per::Cgroup),
        _ => Err(format!(
            "`{text}` is no set of processes for an answer: `process`, `user` or `cgroup`"
        )),
    }
}

/// Reads the lifetime of an answer, which must not be zero.
fn lifetime(text: &str) -> Result<Duration, String> {
    match parse_time(text) {
        Ok(Duration::ZERO) => Err("a lifetime of nothing: use `deny = true`".to_owned()),
        other => other,
    }
}

fn agent(raw: &RawAgent, names: &dyn Names, faults: &mut Faults<'_>) -> (AgentPart, Duration) {
    let mode = raw
        .mode
        .as_ref()
        .and_then(|mode| faults.take(mode, mode.get_ref().parse::<Mode>()));
    let group = raw
        .socket_group
        .as_ref()
        .and_then(|group| faults.take(group, id(group.get_ref(), |name| names.gid(name))));
    let lifetime = raw
        .lifetime
        .as_ref()
        .and_then(|text| faults.take(text, lifetime(text.get_ref())));
    let part = AgentPart {
        mode,
        socket_gid: group,
    };
    (part, lifetime.unwrap_or(LIFETIME))
}

fn keys(
    raw: BTreeMap<Spanned<String>, Spanned<RawKey>>,
    folder: &Path,
    private: bool,
    names: &dyn Names,
    faults: &mut Faults<'_>,
) -> Vec<NamedKey> {
    let mut keys: Vec<NamedKey> = Vec::new();
    for (name, raw) in raw {
        let called = format!("key `{}`", name.get_ref());
        let fine = name_is_fine(name.get_ref()).map_err(|what| format!("{called}: {what}"));
        faults.take(&name, fine);
        let raw = raw.into_inner();
        let key = match (raw.file, raw.hex) {
            (Some(file), None) => {
                let read = names.key(&folder.join(file.get_ref()));
                faults.take(&file, read.map_err(|what| format!("{called}: {what}")))
            }
            (None, Some(hex)) if !private => {
                let what = "stands in a policy that others may read: chmod 600, or name a file";
                faults.at(&hex, format!("{called} {what}"));
                None
            }
            (None, Some(hex)) => Some(hex.into_inner()),
            _ => {
                faults.at(
                    &name,
                    format!("{called} needs `file` or `hex`, and not both"),
                );
                None
            }
        };
        let Some(key) = key else { continue };
        if let Some(same) = keys.iter().find(|other| other.key == key) {
            let what = format!("{called} has the bytes of key `{}`", same.name);
            faults.at(&name, what);
        }
        keys.push(NamedKey {
            name: name.into_inner(),
            key,
        });
    }
    keys
}

fn rights(list: &Spanned<Vec<Spanned<String>>>, faults: &mut Faults<'_>) -> Rights {
    let mut rights = Rights::empty();
    for right in list.get_ref() {
        rights |= faults
            .take(right, right.get_ref().parse())
            .unwrap_or(Rights::empty());
    }
    if list.get_ref().is_empty() {
        faults.at(list, "no rights at all: use `deny = true`");
    }
    rights
}

fn limits(raw: Option<&Spanned<RawLimits>>, faults: &mut Faults<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(raw) = raw.map(Spanned::get_ref) else {
        return limits;
    };
    if let Some(value) = &raw.pinned {
        limits.pinned = faults.take(value, size(value.get_ref())).flatten();
    }
    if let Some(value) = &raw.keys {
        limits.keys = faults.take(value, count(value.get_ref())).flatten();
    }
    if let Some(value) = &raw.endpoints {
        limits.endpoints = faults.take(value, count(value.get_ref())).flatten();
    }
    limits
}

fn who(raw: &RawJob, names: &dyn Names, faults: &mut Faults<'_>) -> Who {
    let mut who = Who::default();
    for user in &raw.users {
        let uid = id(user.get_ref(), |name| names.uid(name));
        who.uids.extend(faults.take(user, uid));
    }
    for group in &raw.groups {
        let gid = id(group.get_ref(), |name| names.gid(name));
        who.gids.extend(faults.take(group, gid));
    }
    for path in &raw.cgroups {
        who.cgroups
            .extend(faults.take(path, cgroup(path.get_ref())));
    }
    for name in &raw.netns {
        who.netns.extend(faults.take(name, netns(name.get_ref())));
    }
    who
}

fn job(
    raw: &Spanned<RawJob>,
    default: Duration,
    known: &BTreeMap<String, Option<usize>>,
    names: &dyn Names,
    faults: &mut Faults<'_>,
) -> Job {
    let line = faults.line(raw.span().start);
    let raw = raw.get_ref();
    let called = format!("job `{}`", raw.name.get_ref());
    let fine = name_is_fine(raw.name.get_ref()).map_err(|what| format!("{called}: {what}"));
    faults.take(&raw.name, fine);
    let mut keys = Vec::new();
    for name in raw.keys.get_ref() {
        match known.get(name.get_ref()) {
            Some(at) => keys.extend(*at),
            // `known` contains a key with faults, too: its faults are reported already.
            None => faults.at(name, "no key is called so".to_owned()),
        }
    }
    if raw.keys.get_ref().is_empty() {
        faults.at(&raw.keys, format!("{called} has no keys"));
    }
    let nobody = raw.users.is_empty()
        && raw.groups.is_empty()
        && raw.cgroups.is_empty()
        && raw.netns.is_empty();
    if nobody && !raw.anybody {
        let what = "names no processes: add users, groups, cgroups or netns, or `anybody = true`";
        faults.at(&raw.name, format!("{called} {what}"));
    }
    if raw.anybody && !nobody {
        let what = "has `anybody = true`, and names processes as well";
        faults.at(&raw.name, format!("{called} {what}"));
    }
    let who = who(raw, names, faults);
    let deny = raw.deny.as_ref().is_some_and(|deny| *deny.get_ref());
    let terms = [
        raw.rights.is_some(),
        raw.limits.is_some(),
        raw.lifetime.is_some(),
        raw.per.is_some(),
    ];
    if deny && terms.contains(&true) {
        let what = "denies: `rights`, `limits`, `lifetime` and `per` have no meaning in it";
        faults.at(&raw.name, format!("{called} {what}"));
    }
    let rights = raw
        .rights
        .as_ref()
        .map_or(Rights::all(), |list| rights(list, faults));
    let lifetime = raw
        .lifetime
        .as_ref()
        .and_then(|text| faults.take(text, lifetime(text.get_ref())));
    let per = raw
        .per
        .as_ref()
        .and_then(|text| faults.take(text, per(text.get_ref())));
    let gives = Gives {
        per: per.unwrap_or_default(),
        rights,
        limits: limits(raw.limits.as_ref(), faults),
        lifetime: lifetime.unwrap_or(default),
    };
    Job {
        name: raw.name.get_ref().clone(),
        line,
        keys,
        who,
        gives: (!deny).then_some(gives),
    }
}

/// Removes text in double quotes from a message.
fn unquoted(message: &str) -> String {
    let parts = message.split('"').enumerate();
    let shown = parts.map(|(i, part)| if i % 2 == 0 { part } else { "…" });
    shown.collect::<Vec<_>>().join("\"")
}

/// Implements [`Policy::parse`].
pub(super) fn parse(
    text: &str,
    folder: &Path,
    private: bool,
    names: &dyn Names,
) -> Result<Policy, Vec<Fault>> {
    let mut faults = Faults {
        text,
        all: Vec::new(),
    };
    let raw: RawPolicy = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(error) => {
            // Only the message: the full form repeats the line, which may contain a key.
            let line = error.span().map_or(0, |span| faults.line(span.start));
            // Nor a value, which the parser puts into double quotes.
            let what = unquoted(error.message());
            return Err(vec![Fault { line, what }]);
        }
    };
    let (agent, default) = agent(&raw.agent, names, &mut faults);
    // A faulty key is reported once, and not again for each job that names the key.
    let mut known: BTreeMap<String, Option<usize>> = raw
        .keys
        .keys()
        .map(|name| (name.get_ref().clone(), None))
        .collect();
    let keys = keys(raw.keys, folder, private, names, &mut faults);
    for (at, key) in keys.iter().enumerate() {
        known.insert(key.name.clone(), Some(at));
    }
    let mut jobs: Vec<Job> = Vec::new();
    for raw in &raw.jobs {
        let job = job(raw, default, &known, names, &mut faults);
        if let Some(first) = jobs.iter().find(|other| other.name == job.name) {
            let what = format!("job `{}` stands in line {} already", job.name, first.line);
            faults.at(raw, what);
        }
        jobs.push(job);
    }
    if faults.all.is_empty() {
        return Ok(Policy { agent, keys, jobs });
    }
    faults.all.sort_by_key(|fault| fault.line);
    Err(faults.all)
}
