// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Keys of one group for hours, over each card that `qemu-tests/src/profile.rs` has.

use super::world::{Numbering, World};

/// A card, as the ledger sees it.
struct Profile {
    name: &'static str,
    numbering: Numbering,
    /// Keys are invalidated, and a slot keeps its region.
    invalidates: bool,
}

const fn profile(name: &'static str, numbering: Numbering, invalidates: bool) -> Profile {
    Profile {
        name,
        numbering,
        invalidates,
    }
}

/// The profiles of the fake device, in their order.
const PROFILES: [Profile; 7] = [
    profile("mlx5", Numbering::LastFreed, true),
    profile("mlx4", Numbering::Cyclic, true),
    profile("bnxt_re", Numbering::Lowest, true),
    profile("irdma", Numbering::Random, true),
    profile("qedr", Numbering::Lowest, true),
    profile("ionic", Numbering::Lowest, false),
    profile("hns", Numbering::Lowest, false),
];

/// Indices of the device. More would be random ones that are seldom drawn twice.
const INDICES: u32 = 16_384;

/// Indices that are set aside at most.
const ASIDE: usize = 4096;

/// Keys a second that a group gets for ever: a half of its values lasts for a rest.
const RATE: u32 = 600;

/// What the cycles over a profile took.
#[derive(Debug)]
struct Taken {
    /// Records of the ledger.
    records: usize,
    /// Regions that were created or destroyed.
    commands: u64,
    /// The largest number of uses of a value.
    uses: u8,
}

/// Assigns and revokes `count` keys, one after the other. Each is checked: not in use, and rested.
fn cycles(profile: &Profile, count: u32) -> Result<Taken, String> {
    let mut world = World::new(profile.numbering, INDICES, ASIDE, None);
    world.by_turns = false;
    let mut last = None;
    for step in 0..count {
        world.terms.now = step / RATE;
        let next = match last {
            Some(key) if profile.invalidates => world.invalidate(key)?,
            Some(key) => {
                world.revoke(key, false);
                None
            }
            None => None,
        };
        last = match next {
            Some(_) => next,
            None => world.assign()?,
        };
        if last.is_none() {
            return Err(format!("refused at step {step}"));
        }
    }
    let uses = world.had.values().flat_map(|values| values.uses);
    Ok(Taken {
        records: world.wears.len(),
        // Each region that came, less those that are still there, went.
        commands: 2 * world.tries - world.aside.len() as u64 - 1,
        uses: uses.max().unwrap_or(0),
    })
}

/// 10^7 keys in release builds, 4.6 hours at their rate: no refusal, no value before its rest, a record
/// for each index at most, and hardly a command to the device for a key that is invalidated.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
fn p04_keys_of_each_profile_go_on_for_ever() {
    let count = if cfg!(debug_assertions) {
        100_000
    } else {
        10_000_000
    };
    for profile in &PROFILES {
        let name = profile.name;
        let taken = cycles(profile, count).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {taken:?}");
        assert!(taken.records <= INDICES as usize, "{name}: {taken:?}");
        let most = match profile.invalidates {
            true => u64::from(count) / 20,
            false => 21 * u64::from(count) / 10,
        };
        assert!(taken.commands <= most, "{name}: {taken:?}");
        let again = cfg!(debug_assertions) || taken.uses > 1;
        assert!(again, "{name}: no value came again");
    }
}
