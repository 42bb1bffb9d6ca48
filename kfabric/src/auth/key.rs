// SPDX-License-Identifier: GPL-2.0
//! The bytes of auth keys. Each is known once, by a number, as long as anything uses it, and zeroed
//! when nothing does.

use core::sync::atomic::{
    AtomicU64,
    AtomicUsize,
    Ordering, //
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use crate::{
    provider::Proof,
    pure::{
        proof::{
            Mac,
            MAC, //
        },
        scramble::Scramble, //
    },
    sys::auth as sys_auth,
    uapi::KFI_AUTH_KEY_MAX,
};

/// Bytes that are zeroed when they are dropped. They are only ever in their box: what is moved leaves a
/// copy behind.
pub(crate) struct Secret {
    bytes: [u8; KFI_AUTH_KEY_MAX],
    len: usize,
}

impl Secret {
    /// `len` bytes, 1 to `KFI_AUTH_KEY_MAX`, that `fill` fills in.
    ///
    /// # Errors
    ///
    /// `EINVAL`: too few or too many. What `fill` says.
    pub(crate) fn fill(len: usize, fill: impl FnOnce(&mut [u8]) -> Result) -> Result<KBox<Self>> {
        if len == 0 || len > KFI_AUTH_KEY_MAX {
            return Err(EINVAL);
        }
        let none = Self {
            bytes: [0; KFI_AUTH_KEY_MAX],
            len,
        };
        let mut secret = KBox::new(none, GFP_KERNEL_ACCOUNT)?;
        fill(secret.bytes.get_mut(..len).unwrap_or_default())?;
        Ok(secret)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        sys_auth::wipe(&mut self.bytes);
    }
}

/// What is known of an auth key.
struct Value {
    number: u64,
    hash: u64,
    /// [`AuthKey`]s of it. Comes to zero only under the lock of the list.
    users: AtomicUsize,
    secret: KBox<Secret>,
}

/// The auth keys in use, by hash and, among equal hashes, by number. None until there is one.
///
/// Nothing is allocated or freed with the tree locked: every open and close of an object with an auth key
/// takes that lock.
type Keys = Option<RBTree<(u64, u64), Arc<Value>>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static KEYS: Mutex<Keys> = None;
}

/// The permutation that numbers are drawn by.
static NUMBERS: SetOnce<Scramble> = SetOnce::new();
/// Numbers that have been drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Readies the tree and the permutation.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe { KEYS.init() }
    let mut secret = [0; 16];
    sys_auth::random(&mut secret);
    // It is the first time.
    let _ = NUMBERS.populate(Scramble::new(u128::from_ne_bytes(secret)));
}

/// Gives back the tree's memory.
pub(super) fn exit() {
    let keys = KEYS.lock().take();
    drop(keys);
}

/// Returns a number that no auth key had before. It does not tell how many there were: whether the bytes
/// of a key were new is nobody's business who only guesses them.
fn number() -> u64 {
    loop {
        let plain = DRAWN.fetch_add(1, Ordering::Relaxed);
        // 0 stands for "no auth key".
        match NUMBERS.as_ref().map_or(0, |by| by.scramble(plain)) {
            0 => {}
            number => return number,
        }
    }
}

/// Finds the auth key of these bytes and counts one more user of it.
fn find(keys: &Keys, hash: u64, bytes: &[u8]) -> Option<AuthKey> {
    let keys = keys.as_ref()?;
    let mut from = (hash, 0);
    loop {
        let at = keys.cursor_lower_bound(&from)?;
        let (key, value) = at.current();
        if key.0 != hash {
            return None;
        }
        if sys_auth::same(value.secret.bytes(), bytes) {
            value.users.fetch_add(1, Ordering::Relaxed);
            return Some(AuthKey(value.clone()));
        }
        from = (hash, key.1.checked_add(1)?);
    }
}

/// An auth key in use.
pub struct AuthKey(Arc<Value>);

impl AuthKey {
    /// That of these bytes, 1 to `KFI_AUTH_KEY_MAX`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        Self::of(Secret::fill(bytes.len(), |place| {
            place.copy_from_slice(bytes);
            Ok(())
        })?)
    }

    /// That of hexadecimal digits, two for each byte.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not such digits, or too few or too many bytes.
    pub fn from_hex(digits: &[u8]) -> Result<Self> {
        let digit = |c: u8| char::from(c).to_digit(16).ok_or(EINVAL);
        if digits.len() % 2 != 0 {
            return Err(EINVAL);
        }
        Self::of(Secret::fill(digits.len() / 2, |place| {
            for (to, pair) in place.iter_mut().zip(digits.chunks_exact(2)) {
                let &[high, low] = pair else {
                    return Err(EINVAL);
                };
                // CAST: Two digits are a byte.
                *to = ((digit(high)? << 4) | digit(low)?) as u8;
            }
            Ok(())
        })?)
    }

    /// That of a secret.
    pub(crate) fn of(secret: KBox<Secret>) -> Result<Self> {
        let hash = sys_auth::hash(secret.bytes());
        if let Some(known) = find(&KEYS.lock(), hash, secret.bytes()) {
            return Ok(known);
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let number = number();
        let value = Value {
            number,
            hash,
            users: AtomicUsize::new(1),
            secret,
        };
        let value = Arc::new(value, GFP_KERNEL_ACCOUNT)?;
        let node = node.into_node((hash, number), value.clone());
        let known = {
            let mut keys = KEYS.lock();
            // Another task may have added the same bytes since the first look.
            let known = find(&keys, hash, value.secret.bytes());
            if known.is_none() {
                // The number is new.
                let _ = keys.get_or_insert_with(RBTree::new).insert(node);
                return Ok(Self(value));
            }
            known
        };
        known.ok_or(ENOMEM)
    }

    /// Its number, which is no other's as long as it is in use.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether it is the same one.
    pub fn is(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }

    /// The bytes, for the agent.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.secret.bytes()
    }

    /// What proves to a peer that we have it.
    pub(crate) fn prover(&self) -> Result<Arc<dyn Proof>> {
        let proof: Arc<dyn Proof> = Arc::new(Prover(self.clone()), GFP_KERNEL_ACCOUNT)?;
        Ok(proof)
    }
}

impl Clone for AuthKey {
    fn clone(&self) -> Self {
        // Not the first: there is `self`.
        self.0.users.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Drop for AuthKey {
    fn drop(&mut self) {
        let gone = {
            let mut keys = KEYS.lock();
            if self.0.users.fetch_sub(1, Ordering::Relaxed) != 1 {
                return;
            }
            let key = (self.0.hash, self.0.number);
            keys.as_mut().and_then(|keys| keys.remove_node(&key))
        };
        drop(gone);
    }
}

/// An auth key as providers have it.
struct Prover(AuthKey);

impl Proof for Prover {
    fn prove(&self, text: &[u8]) -> Mac {
        let digest = sys_auth::hmac(self.0.bytes(), text);
        let mut mac = [0; MAC];
        mac.copy_from_slice(&digest[..MAC]);
        mac
    }

    fn check(&self, text: &[u8], mac: &Mac) -> bool {
        sys_auth::same(&self.prove(text), mac)
    }
}
