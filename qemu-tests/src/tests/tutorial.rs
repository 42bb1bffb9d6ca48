// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands of the tutorial, the documents and the manual pages, run as they are written.
//!
//! A guest has our modules in a folder and not where `modprobe` looks, so the shell has a function
//! of that name. `systemctl` and the files that a page takes for granted are made by [`Machine`].

use super::authd::once;
use crate::disk;
use crate::harness::guest::{module_users, run, unload};
use crate::harness::{Ctx, Test, ONE};
use crate::recipe::{Exception, Recipe};
use anyhow::{ensure, Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("tutorial.commands_in_order_print_what_is_shown", |c| {
        once(c, tutorial)
    })
    .on(ONE)
    .seconds(60),
    Test::alone("documents.commands_as_written_succeed", |c| {
        once(c, documents)
    })
    .on(ONE)
    .seconds(40),
    Test::alone("documents.commands_of_man_pages_succeed", |c| {
        once(c, pages)
    })
    .on(ONE)
    .seconds(50),
];

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");
/// The other documents with commands.
const DOCUMENTS: [(&str, &str); 7] = [
    ("CONTRIBUTING.md", include_str!("../../../CONTRIBUTING.md")),
    ("README.md", include_str!("../../../README.md")),
    ("TESTING.md", include_str!("../../../TESTING.md")),
    ("docs/install.md", include_str!("../../../docs/install.md")),
    (
        "docs/libfabric.md",
        include_str!("../../../docs/libfabric.md"),
    ),
    (
        "docs/persistent-memory.md",
        include_str!("../../../docs/persistent-memory.md"),
    ),
    (
        "examples/README.md",
        include_str!("../../../examples/README.md"),
    ),
];

const fn except(document: &'static str, command: &'static str, reason: &'static str) -> Exception {
    Exception {
        document,
        command,
        reason,
    }
}

/// The list of commands that do not run in a guest. A test fails if an entry is not needed.
const EXCEPTIONS: &[Exception] = &[
    except(
        "docs/tutorial.md",
        "cp -r /usr/share/kfabric/rust",
        "a guest has no packages; `cargo xtask package --test` builds the program from the package's files",
    ),
    except(
        "docs/tutorial.md",
        "cargo install",
        "a guest has no packages and no network",
    ),
    except(
        "CONTRIBUTING.md",
        "cargo xtask",
        "needs the source tree; the suite is itself run by it",
    ),
    except(
        "CONTRIBUTING.md",
        ".ci/run",
        "runs the suite, of which this test is a part",
    ),
    except(
        "README.md",
        "cargo xtask",
        "makes guests, or installs on the host",
    ),
    except(
        "README.md",
        "apt install",
        "`cargo xtask package --test` installs the packages",
    ),
    except("README.md", "udevadm", "no udev daemon runs in a guest"),
    except("docs/install.md", "cargo xtask", "needs the source tree"),
    except(
        "docs/install.md",
        "apt install",
        "`cargo xtask package --test` installs the packages",
    ),
    except(
        "docs/install.md",
        "kfi doctor",
        "reports a guest's own faults; `doctor.*` run it",
    ),
    except("docs/install.md", "adduser", "there is no user alice"),
    except(
        "docs/install.md",
        "(cd /tmp/kfabric-files",
        "a guest has no installed files",
    ),
    except(
        "docs/install.md",
        "rm -r /lib/modules",
        "a guest has no installed modules",
    ),
    except("docs/install.md", "depmod", "a guest has no installed modules"),
    except(
        "docs/libfabric.md",
        "export FI_PROVIDER_PATH",
        "a guest has the plug-in in another folder",
    ),
    except("docs/persistent-memory.md", "ndctl", "a guest has no ndctl"),
    except(
        "docs/persistent-memory.md",
        "cat /sys/bus/nd",
        "the guest has not loaded the driver of its NVDIMM",
    ),
    except("examples/README.md", "cargo xtask", "needs the source tree"),
    except(
        "examples/README.md",
        "make -C",
        "`cargo xtask build` runs it",
    ),
    except(
        "kfi-doctor.1",
        "kfi doctor",
        "reports a guest's own faults; `doctor.*` run it",
    ),
    except(
        "kfi-export.1",
        "kfi export /dev/dax0.0",
        "`kfi.p10_durable_put_writes_persistent_memory` exports a device",
    ),
    except(
        "kfi-put.1",
        "kfi export /dev/dax0.0",
        "`kfi.p10_durable_put_writes_persistent_memory` exports a device",
    ),
    except(
        "kfi-put.1",
        "kfi put 10.0.0.1 new.img --port 7473 --durable",
        "`kfi.p10_durable_put_writes_persistent_memory` puts into a device",
    ),
    except("kfi-blk.8", "ndctl", "a guest has no ndctl"),
    except(
        "kfi-blk.8",
        "kfi blk export log",
        "`blkpmem.*` export persistent memory",
    ),
    except(
        "kfi-blk.8",
        "kfi blk connect 10.0.0.1 log",
        "`blkpmem.*` create disks of persistent memory",
    ),
    except(
        "kfi-authd.8",
        "kfi auth check",
        "needs a process of a job of Slurm",
    ),
];

/// Commands before those of every recipe.
const MODPROBE: &str = "\
modprobe() {
    local name
    for name; do
        if [ \"$name\" = -a ] || [ -e \"/sys/module/$name\" ]; then continue; fi
        if [ -e \"/kfi/ko/$name.ko\" ]
        then insmod \"/kfi/ko/$name.ko\" $([ $name = kverbs ] && echo iwarp=1)
        else command modprobe \"$name\"
        fi
    done
}";

/// Files that the documents take for granted, with mode 600.
const FILES: [(&str, &[u8]); 5] = [
    (
        "/etc/kfabric/authd.toml",
        include_bytes!("../../../userspace/kfi-authd/examples/authd.toml"),
    ),
    ("/etc/kfabric/keys/compute", b"a key of 24 bytes: compute"),
    ("/etc/kfabric/keys/storage", b"a key of 24 bytes: storage"),
    ("/etc/other-host.key", b"the key of another host"),
    ("/etc/systemd/system/kfi-authd.service", b""),
];
/// Users and groups that the example of a policy names.
const NAMES: [(&str, &str); 2] = [
    (
        "/etc/passwd",
        "mallory:x:2001:2001::/:/bin/sh\nobjstore:x:2002:2002::/:/bin/sh\n",
    ),
    ("/etc/group", "slurm:x:2003:\nblue:x:2004:\n"),
];
/// Starts the one unit of the documents.
const SYSTEMCTL: &str = "\
systemctl() {
    [ \"$*\" = 'start kfi-authd' ] || return 0
    kfi-authd &
    until [ -S /run/kfi-authd/socket ]; do kill -0 $! || return 1; sleep 0.1; done
}";
/// Makes the files that examples of `kfi export` and `kfi put` name.
const SOURCES: &str = "head -c 1M /dev/urandom >data.img; cp data.img new.img; chmod 666 data.img";
const DEVICE: &str = "/dev/kfabric";

/// A network device `eth0` with the documents' address, and their files. Everything is removed on
/// drop.
struct Machine {
    folder: PathBuf,
    names: Vec<(&'static str, Option<Vec<u8>>)>,
}

impl Machine {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("documents.{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut machine = Self {
            folder,
            names: Vec::new(),
        };
        for (path, lines) in NAMES {
            let old = fs::read(path).ok();
            let mut new = old.clone().unwrap_or_default();
            machine.names.push((path, old));
            new.extend_from_slice(lines.as_bytes());
            fs::write(path, new)?;
        }
        Ok(machine)
    }

    /// Makes the files and the network device anew, for one document.
    fn prepare(&self) -> Result<()> {
        for (path, content) in FILES {
            let path = PathBuf::from(path);
            fs::create_dir_all(path.parent().context("a folder")?)?;
            fs::write(&path, content)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
        // As the udev rule does.
        run("chgrp", &["rdma", DEVICE])?;
        run("chmod", &["660", DEVICE])?;
        // The ordinary user stores files there.
        fs::set_permissions(&self.folder, Permissions::from_mode(0o777))?;
        for line in [
            "link add eth0 mtu 4400 type dummy",
            "address add 10.0.0.1/24 dev eth0",
            "link set eth0 up",
        ] {
            run("ip", &line.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Removes the traces of one document's commands.
    fn tidy(&self) -> Result<()> {
        run("chgrp", &["root", DEVICE])?;
        // The agent may be gone, and a document may have removed its disks itself.
        run("kfi", &["auth", "revoke", "--all"])?;
        run("kfi", &["auth", "mode", "open"])?;
        if module_users("kfblk").is_some() {
            let mounted = fs::read_to_string("/proc/mounts")?.contains(" /sys/kernel/config ");
            ensure!(mounted, "configfs is not mounted");
            disk::sweep().context("removing kfblk")?;
        }
        if fs::remove_file("/dev/sdb").is_ok() {
            unload("null_blk")?;
        }
        for (program, kind, name) in [
            ("rdma", "link", "rxe0"),
            ("ip", "link", "eth0"),
            ("ip", "link", "kfi0"),
        ] {
            // Each document has made some of them.
            let _ = run(program, &[kind, "delete", name]);
        }
        let _ = fs::remove_dir_all("/run/kfi-authd");
        Ok(())
    }

    /// Runs a recipe on the prepared machine.
    fn run(&self, recipe: &Recipe, more: &str) -> Result<()> {
        self.prepare()?;
        let prelude = format!("{MODPROBE}\n{SYSTEMCTL}\n{SOURCES}\n{more}");
        let result = recipe.run(&self.folder, &prelude, Duration::from_secs(60));
        let tidied = self.tidy();
        result.and(tidied)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for (path, old) in &self.names {
            let _ = match old {
                Some(old) => fs::write(path, old),
                None => fs::remove_file(path),
            };
        }
        for path in ["/etc/kfabric", "/etc/systemd/system"] {
            let _ = fs::remove_dir_all(path);
        }
        let _ = fs::remove_file("/etc/other-host.key");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Checks that each exception of a document was used.
fn all_used(document: &str, used: &[usize]) -> Result<()> {
    for (at, except) in EXCEPTIONS.iter().enumerate() {
        ensure!(
            except.document != document || used.contains(&at),
            "{document}: the exception {:?} has no command",
            except.command
        );
    }
    Ok(())
}

fn tutorial(_: &mut Ctx) -> Result<()> {
    let mut recipe = Recipe::document("docs/tutorial.md", TUTORIAL)?;
    let used = recipe.leave_out(EXCEPTIONS);
    all_used(&recipe.name, &used)?;
    ensure!(recipe.steps.len() > 10, "few commands: {recipe:?}");
    Machine::new()?.run(&recipe, "")
}

fn documents(ctx: &mut Ctx) -> Result<()> {
    let machine = Machine::new()?;
    let own = ctx.env.addr;
    for (name, text) in DOCUMENTS {
        let mut recipe = Recipe::document(name, text)?;
        all_used(name, &recipe.leave_out(EXCEPTIONS))?;
        let more = match name {
            // The backing disk of an export.
            "README.md" => "modprobe null_blk; ln -sf /dev/nullb0 /dev/sdb",
            "docs/libfabric.md" => "export FI_PROVIDER_PATH=/kfi/bin",
            _ => "",
        };
        machine.run(&recipe, &format!("export KFI_ADDR={own}\n{more}"))?;
    }
    Ok(())
}

fn pages(_: &mut Ctx) -> Result<()> {
    let machine = Machine::new()?;
    let folder = machine.folder.join("man");
    run("kfi", &["man", &folder.display().to_string()])?;
    let mut commands = 0;
    let mut names: Vec<_> = fs::read_dir(&folder)?.collect::<std::io::Result<_>>()?;
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut recipe = Recipe::page(&name, &fs::read_to_string(entry.path())?);
        all_used(&name, &recipe.leave_out(EXCEPTIONS))?;
        commands += recipe.steps.len();
        // The commands talk to a running agent.
        let more = match &*name {
            "kfi-auth.8" => "systemctl start kfi-authd",
            "kfi-blk.8" => "modprobe kfblk",
            _ => "",
        };
        machine.run(&recipe, more)?;
    }
    ensure!(commands > 20, "only {commands} commands are in the pages");
    Ok(())
}

#[cfg(test)]
mod list {
    use super::*;

    /// Adds the names of the Markdown files below `folder`, relative to `root`.
    fn pages(root: &Path, folder: &Path, names: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    pages(root, &path, names);
                }
            } else if name.ends_with(".md") {
                let name = path.strip_prefix(root).unwrap();
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }

    #[test]
    fn document_with_a_block_is_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut names = Vec::new();
        pages(root, root, &mut names);
        assert!(names.len() > 10, "{names:?}");
        names.retain(|name| {
            let text = fs::read_to_string(root.join(name)).unwrap();
            text.lines()
                .any(|line| line.trim_start().starts_with("```"))
        });
        names.sort();
        let mut listed: Vec<&str> = DOCUMENTS.iter().map(|(name, _)| *name).collect();
        listed.push("docs/tutorial.md");
        listed.sort_unstable();
        assert_eq!(names, listed);
    }

    #[test]
    fn tests_that_documents_name_exist() {
        let all = DOCUMENTS
            .into_iter()
            .chain([("docs/tutorial.md", TUTORIAL)]);
        for (name, text) in all {
            for test in Recipe::document(name, text).unwrap().tests {
                assert!(crate::tests::find(&test).is_some(), "{name}: {test}");
            }
        }
    }

    #[test]
    fn exceptions_of_documents_have_commands_and_reasons() {
        for (name, text) in DOCUMENTS
            .into_iter()
            .chain([("docs/tutorial.md", TUTORIAL)])
        {
            let used = Recipe::document(name, text).unwrap().leave_out(EXCEPTIONS);
            all_used(name, &used).unwrap();
        }
        assert!(EXCEPTIONS.iter().all(|except| except.reason.len() > 10));
    }
}
