// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of valid and faulty policies.

use proptest::prelude::*;

use super::*;

/// Names that every system has.
struct Fake;

impl Names for Fake {
    fn uid(&self, name: &str) -> Result<u32, String> {
        match name {
            "alice" => Ok(1000),
            _ => Err(format!("no user is called `{name}`")),
        }
    }

    fn gid(&self, name: &str) -> Result<u32, String> {
        match name {
            "hpc" => Ok(500),
            _ => Err(format!("no group is called `{name}`")),
        }
    }

    fn key(&self, path: &Path) -> Result<AuthKey, String> {
        match path.to_str() {
            Some("/etc/k/compute") => AuthKey::from_hex("c0ffee").map_err(|e| e.to_string()),
            _ => Err(format!("{}: not there", path.display())),
        }
    }
}

fn parse(text: &str, private: bool) -> Result<Policy, Vec<Fault>> {
    Policy::parse(text, Path::new("/etc/k"), private, &Fake)
}

/// Lines and descriptions of a text's faults.
fn faults(text: &str) -> Vec<(usize, String)> {
    let faults = parse(text, true).expect_err("it is wrong");
    faults.into_iter().map(|f| (f.line, f.what)).collect()
}

#[test]
fn example_policy_has_no_fault() {
    let text = include_str!("../../examples/authd.toml");
    struct Any;
    impl Names for Any {
        fn uid(&self, name: &str) -> Result<u32, String> {
            Ok(u32::try_from(name.len()).unwrap())
        }
        fn gid(&self, name: &str) -> Result<u32, String> {
            self.uid(name)
        }
        fn key(&self, path: &Path) -> Result<AuthKey, String> {
            AuthKey::new(path.to_str().unwrap().as_bytes().to_vec()).map_err(|e| e.to_string())
        }
    }
    let policy = Policy::parse(text, Path::new("/etc/kfabric"), false, &Any).unwrap();
    assert!(policy.keys.len() >= 2 && policy.jobs.len() >= 2);
}

#[test]
fn policy_with_every_setting_is_read() {
    let text = "
[agent]
mode = \"enforce\"
socket-group = \"hpc\"
lifetime = \"2h\"
[keys.compute]
file = \"compute\"
[keys.storage]
hex = \"00:11\"
[[job]]
name = \"bad-one\"
keys = [\"compute\"]
users = [7]
deny = true
[[job]]
name = \"all\"
keys = [\"storage\", \"compute\"]
users = [\"alice\", 0]
groups = [\"hpc\"]
cgroups = [\"/a/b\"]
netns = [\"/run/netns/x\"]
rights = [\"keys\"]
limits = { pinned = \"4K\", keys = 9, endpoints = \"unlimited\" }
per = \"user\"
";
    let policy = parse(text, true).unwrap();
    assert_eq!(policy.agent.mode, Some(Mode::Enforce));
    assert_eq!(policy.agent.socket_gid, Some(500));
    assert_eq!(policy.key_named("storage").unwrap().key.expose(), [0, 0x11]);
    let [bad, all] = &policy.jobs[..] else {
        panic!("two jobs")
    };
    assert_eq!((bad.line, &bad.gives, &bad.keys), (10, &None, &vec![0]));
    assert_eq!(all.keys, [1, 0]);
    assert_eq!(all.who.uids, [1000, 0]);
    assert_eq!(all.who.cgroups, ["/a/b"]);
    let gives = all.gives.as_ref().unwrap();
    assert_eq!(gives.rights, Rights::KEYS);
    assert_eq!(gives.per, Per::User);
    assert_eq!(gives.lifetime, Duration::from_secs(7200));
    let limits = Limits {
        pinned: Some(4096),
        keys: Some(9),
        endpoints: None,
    };
    assert_eq!(gives.limits, limits);
    // The same text, if others may read it.
    let said = parse(text, false).unwrap_err();
    assert_eq!((said.len(), said[0].line), (1, 9), "{said:?}");
}

#[test]
fn every_fault_is_reported_with_its_line() {
    let text = "[keys.x]
file = \"nowhere\"
[keys.\"y z\"]
[[job]]
name = \"a\"
keys = [\"x\", \"w\"]
[[job]]
name = \"a\"
keys = []
users = [\"mallory\", 4294967295]
cgroups = [\"a\", \"/a/../b\", \"/a/\"]
netns = [\"blue\"]
rights = [\"all\", \"keys\"]
limits = { pinned = \"4Q\", keys = 0 }
lifetime = \"0s\"
per = \"host\"
";
    let said = faults(text);
    for (line, word) in [
        (2, "/etc/k/nowhere"),
        (3, "a name has"),
        (3, "`file` or `hex`"),
        (5, "names no processes"),
        (6, "no key is called so"),
        (7, "line 4 already"),
        (9, "has no keys"),
        (10, "mallory"),
        (10, "4294967295"),
        (11, "`a` is not a control group"),
        (11, "`/a/../b`"),
        (11, "`/a/`"),
        (12, "blue"),
        (13, "`all` is not a right"),
        (14, "4Q"),
        (14, "1 at least"),
        (15, "deny = true"),
        (16, "host"),
    ] {
        let there = said
            .iter()
            .any(|(at, what)| *at == line && what.contains(word));
        assert!(there, "line {line} {word:?} is not in {said:#?}");
    }
    assert_eq!(said.len(), 18, "{said:#?}");
}

#[test]
fn toml_error_has_its_line_and_no_key() {
    for (text, line) in [
        ("[keys.x]\nhex = \"5ec2e75ec2zz\"\n", 2),
        ("[keys.x]\nhex = 52352352\n", 2),
        ("[keys.x]\n\nhex = 5ec2e75ec2\n", 3),
        ("[keys.x]\nhex = \"5ec2e75ec2\n", 2),
        ("[keys.x]\nhex = [\"5ec2e75ec2\"]\n", 2),
        ("[agent]\n[keys.x]\nhexx = \"5ec2e75ec2\"\n", 3),
    ] {
        let said = faults(text);
        assert_eq!(said[0].0, line, "{text}: {said:?}");
        let words = format!("{said:?}");
        assert!(
            !words.contains("5ec2") && !words.contains("5235"),
            "{words}"
        );
    }
}

#[test]
fn load_of_a_file_with_a_wrong_mode_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("kfi-authd.{}.toml", std::process::id()));
    std::fs::write(&path, "[keys.x]\nhex = \"00\"\n").unwrap();
    let set =
        |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    for (mode, word) in [
        (0o620, "chmod go-w"),
        (0o602, "chmod go-w"),
        (0o644, ":2: key `x`"),
    ] {
        set(mode);
        let said = Policy::load(&path).unwrap_err().to_string();
        assert!(said.contains(word), "{mode:o}: {said}");
        assert!(said.starts_with(path.to_str().unwrap()), "{said}");
    }
    set(0o600);
    assert_eq!(Policy::load(&path).unwrap().keys.len(), 1);
    std::fs::remove_file(&path).unwrap();
    assert!(Policy::load(&path).is_err());
}

proptest! {
    #[test]
    fn any_text_is_a_policy_or_an_error(text in "(\\PC|\n){0,200}") {
        if let Err(faults) = parse(&text, true) {
            prop_assert!(!faults.is_empty());
        }
    }

    /// Unknown names and numbers out of range are faults, never panics.
    #[test]
    fn any_values_are_taken_or_refused(
        name in ".{0,80}",
        users in proptest::collection::vec(any::<i64>(), 0..3),
        limit in any::<i64>(),
        lifetime in "[0-9]{0,20}[a-z]{0,3}",
    ) {
        let name = toml::Value::String(name).to_string();
        let text = format!(
            "[keys.k]\nhex = \"00\"\n[[job]]\nname = {name}\nkeys = [\"k\"]\nusers = {users:?}\n\
             limits = {{ keys = {limit} }}\nlifetime = \"{lifetime}\"\n"
        );
        let _ = parse(&text, true);
    }
}
