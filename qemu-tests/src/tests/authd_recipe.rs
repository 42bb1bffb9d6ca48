// SPDX-License-Identifier: MIT OR Apache-2.0

//! Types README's recipe for auth keys as it is written.

use super::authd::{once, WAIT};
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, ONE};
use crate::sys;
use anyhow::{ensure, Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::alone("authd.recipe_of_readme_works_as_written", |c| {
    once(c, recipe)
})
.on(ONE)];

const README: &str = include_str!("../../../README.md");
/// Files that the recipe copies.
const EXAMPLES: [(&str, &str); 2] = [
    (
        "authd.toml",
        include_str!("../../../userspace/kfi-authd/examples/authd.toml"),
    ),
    (
        "kfi-authd.service",
        include_str!("../../../userspace/kfi-authd/examples/kfi-authd.service"),
    ),
];
/// Programs that a guest lacks; each stand-in suffices for the recipe.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "openssl",
        "#!/bin/sh\n[ \"$1\" = rand ] && exec head -c \"$2\" /dev/urandom\n",
    ),
    (
        "systemctl",
        "#!/bin/sh\n\
         unit=/etc/systemd/system/kfi-authd.service\n\
         case $1 in daemon-reload) test -e $unit ;; start) test -e $unit || exit 5\n\
         kfi-authd </dev/null >/run/recipe.log 2>&1 &\n\
         until [ -S /run/kfi-authd/socket ]; do kill -0 $! || exit 1; done ;; esac\n",
    ),
];
/// Users and groups that the example names.
const NAMES: [(&str, &str); 2] = [
    (
        "/etc/passwd",
        "mallory:x:2001:2001::/:/bin/sh\nobjstore:x:2002:2002::/:/bin/sh\n",
    ),
    ("/etc/group", "slurm:x:2003:\nblue:x:2004:\n"),
];

/// A folder like the source tree, and the files that the recipe leaves behind.
struct Machine {
    folder: PathBuf,
    names: Vec<(&'static str, Option<Vec<u8>>)>,
}

impl Machine {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("recipe.{}", std::process::id()));
        let mut machine = Self {
            folder,
            names: Vec::new(),
        };
        let examples = machine.folder.join("userspace/kfi-authd/examples");
        let programs = machine.folder.join("bin");
        for (folder, files) in [(&examples, EXAMPLES), (&programs, PROGRAMS)] {
            fs::create_dir_all(folder)?;
            for (name, text) in files {
                let path = folder.join(name);
                fs::write(&path, text)?;
                fs::set_permissions(path, Permissions::from_mode(0o755))?;
            }
        }
        fs::create_dir_all("/etc/systemd/system")?;
        for (path, lines) in NAMES {
            let old = fs::read(path).ok();
            let mut new = old.clone().unwrap_or_default();
            machine.names.push((path, old));
            new.extend_from_slice(lines.as_bytes());
            fs::write(path, new)?;
        }
        Ok(machine)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(Some(pid)) = agent() {
            let _ = sys::kill(pid, libc::SIGTERM);
            let gone = || Ok((!Path::new("/run/kfi-authd/socket").exists()).then_some(()));
            if let Err(e) = until("the daemon ends", WAIT, gone) {
                eprintln!("{e:#}");
            }
        }
        let _ = run("kfi", &["auth", "revoke", "--all"]);
        if let Err(e) = run("kfi", &["auth", "mode", "open"]) {
            eprintln!("the mode stays: {e:#}");
        }
        for (path, old) in &self.names {
            let _ = match old {
                Some(old) => fs::write(path, old),
                None => fs::remove_file(path),
            };
        }
        for path in ["/etc/kfabric", "/etc/systemd/system"] {
            let _ = fs::remove_dir_all(path);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the agent's process, if there is one.
fn agent() -> Result<Option<i32>> {
    let text = run("kfi", &["--json", "auth", "mode"])?;
    let rule: serde_json::Value = serde_json::from_str(&text)?;
    Ok(rule["agent_pid"].as_i64().map(|pid| pid as i32))
}

fn recipe(_: &mut Ctx) -> Result<()> {
    let machine = Machine::new()?;
    let (_, section) = README
        .split_once("## Access by auth keys\n")
        .context("the section")?;
    let block = section.split("```").nth(1).context("the recipe")?;
    // The first line says which test runs the block.
    let (_, block) = block.split_once('\n').context("no commands")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = machine.folder.join("bin");
    let out = Command::new("sh")
        .args(["-ec", block])
        .current_dir(&machine.folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .output()?;
    let log = fs::read_to_string("/run/recipe.log").unwrap_or_default();
    ensure!(out.status.success(), "{out:?}: {log}");
    let said = String::from_utf8_lossy(&out.stdout);
    ensure!(said.contains("no grants"), "{said}: {log}");
    ensure!(agent()?.is_some(), "there is no agent: {log}");
    let list = run("kfi", &["auth", "list"])?;
    ensure!(list.contains("1000"), "{list}");
    let mode = run("kfi", &["auth", "mode"])?;
    ensure!(mode.contains("mode: enforce"), "{mode}");
    let mode = fs::metadata("/etc/kfabric/keys/storage")?
        .permissions()
        .mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    Ok(())
}
