// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of job managers on the socket.

use std::path::{Path, PathBuf};

use kfabric::{Errno, Error};
use kfauth::protocol::{
    Answer, ChangeRequest, CheckRequest, GrantRequest, KeyRef, Request, Verdict, WhomRequest,
};
use kfauth::{
    netns_cookie, parse_time, time_text, AuthKey, Grants, Mode, Process, Rights, Setting, Whom,
    HOST_USERNS,
};

use crate::decide::{decide, Ask, Decision};
use crate::event;
use crate::log::plain;
use crate::policy::Policy;
use crate::serve::Here;
use crate::socket::{refusal, Peer};

/// Reason and errno of a refused request.
struct No(String, Errno);

impl From<Error> for No {
    fn from(e: Error) -> Self {
        Self(e.to_string(), e.errno().unwrap_or(Errno::EIO))
    }
}

/// Makes the refusal of a wrong argument.
fn wrong(what: impl Into<String>) -> No {
    No(what.into(), Errno::EINVAL)
}

/// Makes the refusal of a request that names something that cannot be found or read.
fn missing(what: &str) -> impl Fn(std::io::Error) -> No + '_ {
    move |e| {
        No(
            format!("{what}: {e}"),
            Errno(e.raw_os_error().unwrap_or(Errno::EIO.0)),
        )
    }
}

/// Answers one line.
pub(crate) fn answer(policy: &Policy, grants: &Grants, peer: Peer, line: &[u8]) -> Answer {
    let request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(e) => return refusal(&format!("not a request: {e}"), "EINVAL"),
    };
    match serve(policy, grants, peer, request) {
        Ok(answer) => answer,
        Err(No(what, errno)) => {
            event!(
                Debug,
                "pid {} of uid {} is refused: {}",
                peer.pid,
                peer.uid,
                plain(&what)
            );
            refusal(&what, errno.name())
        }
    }
}

fn serve(policy: &Policy, grants: &Grants, peer: Peer, request: Request) -> Result<Answer, No> {
    let by = format!("by pid {} of uid {}", peer.pid, peer.uid);
    match request {
        Request::Grant(request) => grant(policy, grants, &request, &by).map(Answer::Grant),
        Request::Change(request) => change(grants, &request, &by).map(Answer::Changed),
        Request::Revoke { grants: ids } => {
            let mut revoked = 0;
            for id in ids {
                match grants.revoke(id) {
                    Ok(()) => {
                        event!(Info, "revoke grant={id} {by}");
                        revoked += 1;
                    }
                    Err(e) if e.errno() == Some(Errno::ENOENT) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(Answer::Revoked(revoked))
        }
        Request::List => Ok(Answer::Grants(grants.list()?)),
        Request::Check(request) => check(policy, &request).map(Answer::Verdict),
        Request::Rule => Ok(Answer::Rule(grants.rule()?)),
        Request::Mode(mode) => set_mode(grants, mode, peer, &by),
        _ => Err(wrong("a request that this version does not know")),
    }
}

fn set_mode(grants: &Grants, mode: Mode, peer: Peer, by: &str) -> Result<Answer, No> {
    if peer.uid != 0 {
        return Err(No("the mode is root's".to_owned(), Errno::EPERM));
    }
    let setting = Setting {
        mode: Some(mode),
        ..Setting::default()
    };
    let rule = grants.set(&setting)?;
    event!(Notice, "mode {mode} {by}");
    Ok(Answer::Rule(rule))
}

/// Returns the auth key of a request, and its name for the log.
fn key<'a>(policy: &'a Policy, named: &'a KeyRef) -> Result<(&'a AuthKey, &'a str), No> {
    match named {
        KeyRef::Name(name) => match policy.key_named(name) {
            Some(known) => Ok((&known.key, &known.name)),
            None => {
                let what = format!("the policy has no key `{}`", plain(name));
                Err(No(what, Errno::ENOENT))
            }
        },
        KeyRef::Hex(key) => {
            let name = policy.find_key(key).map(|at| &*policy.keys[at].name);
            Ok((key, name.unwrap_or("given")))
        }
    }
}

/// Rights by their names; all rights if there are no names.
fn rights(names: &[String]) -> Result<Rights, No> {
    if names.is_empty() {
        return Ok(Rights::all());
    }
    let mut rights = Rights::empty();
    for name in names {
        rights |= name.parse().map_err(wrong)?;
    }
    Ok(rights)
}

fn whom(request: &WhomRequest) -> Result<Whom, No> {
    if *request == WhomRequest::default() {
        return Err(wrong(
            "a grant needs a condition: uid, gid, cgroup, netns or process",
        ));
    }
    let mut whom = Whom::new();
    if let Some(uid) = request.uid {
        whom = whom.uid(uid);
    }
    if let Some(gid) = request.gid {
        whom = whom.gid(gid);
    }
    if let Some(path) = &request.cgroup {
        whom = whom.cgroup(path).map_err(missing("cgroup"))?;
    }
    if let Some(path) = &request.netns {
        whom = whom.netns(Path::new(path)).map_err(missing("netns"))?;
    }
    if let Some(process) = &request.process {
        let held = Process::known(process.pid, process.id).map_err(missing("process"))?;
        whom = whom.process(held);
    }
    Ok(whom)
}

fn grant(policy: &Policy, grants: &Grants, request: &GrantRequest, by: &str) -> Result<u64, No> {
    let (key, called) = key(policy, &request.key)?;
    let rights = rights(&request.rights)?;
    let lifetime = request.lifetime.as_deref().map(parse_time).transpose();
    let lifetime = lifetime.map_err(wrong)?;
    let id = grants.add(
        key,
        &whom(&request.whom)?,
        rights,
        &request.limits,
        lifetime,
    )?;
    let end = lifetime.map_or_else(|| "unlimited".to_owned(), time_text);
    let whom = plain(&format!("{:?}", request.whom));
    let limits = request.limits;
    event!(
        Info,
        "grant={id} key={called} rights={rights} {limits} lifetime={end} {whom} {by}"
    );
    Ok(id)
}

fn change(grants: &Grants, request: &ChangeRequest, by: &str) -> Result<u64, No> {
    let lifetime = match request.lifetime.as_deref() {
        None => None,
        Some("unlimited") => Some(None),
        Some(text) => Some(Some(parse_time(text).map_err(wrong)?)),
    };
    grants.change(request.grant, request.limits.as_ref(), lifetime)?;
    event!(Info, "change grant={} {by}", request.grant);
    Ok(request.grant)
}

fn check(policy: &Policy, request: &CheckRequest) -> Result<Verdict, No> {
    let (key, _) = key(policy, &request.key)?;
    let process = Process::open(request.pid).map_err(missing("process"))?;
    let (uid, gid, groups) = process.ids().map_err(missing("process"))?;
    let netns = PathBuf::from(format!("/proc/{}/ns/net", process.pid()));
    let ask = Ask {
        key,
        rights: rights(&request.rights)?,
        uid,
        gid,
        groups: Some(groups),
        cgroup: process.cgroup().ok(),
        netns: netns_cookie(&netns).map_err(missing("its network namespace"))?,
        apart: process.userns().map_err(missing("process"))? != HOST_USERNS,
    };
    if !process.is_alive() {
        return Err(No("the process is gone".to_owned(), Errno::ESRCH));
    }
    let decision = decide(policy, &ask, &Here);
    let why = decision.why(policy);
    Ok(match decision {
        Decision::Allow {
            limits, lifetime, ..
        } => Verdict {
            allowed: true,
            why,
            limits: Some(limits),
            lifetime: Some(time_text(lifetime)),
        },
        Decision::Deny(_) => Verdict {
            allowed: false,
            why,
            limits: None,
            lifetime: None,
        },
    })
}
