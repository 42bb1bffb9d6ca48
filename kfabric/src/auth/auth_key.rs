// SPDX-License-Identifier: GPL-2.0
//! The bytes of auth keys. Each auth key is stored once, under a number, while any object uses it;
//! then its bytes are zeroed.

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

/// Bytes that are zeroed when they are dropped. They stay in their box, because a move would leave
/// a copy behind.
pub(crate) struct Secret {
    bytes: [u8; KFI_AUTH_KEY_MAX],
    len: usize,
}

impl Secret {
    /// Makes a secret of `len` bytes, 1 to `KFI_AUTH_KEY_MAX`, which `fill` writes.
    ///
    /// # Errors
    ///
    /// The error of `fill`, and:
    ///
    /// - `EINVAL` if `len` is 0 or too large.
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

/// The stored auth key.
struct Value {
    number: u64,
    hash: u64,
    /// Number of [`AuthKey`]s of it. Drops to zero only under the lock of the tree.
    users: AtomicUsize,
    secret: KBox<Secret>,
}

/// The auth keys in use, by hash and, among equal hashes, by number. `None` until the first one.
///
/// No memory is allocated or freed with the tree locked: every open and close of an object with an
/// auth key takes that lock.
type Keys = Option<RBTree<(u64, u64), Arc<Value>>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static KEYS: Mutex<Keys> = None;
}

/// The permutation that maps counts to numbers.
static NUMBERS: SetOnce<Scramble> = SetOnce::new();
/// Number of numbers drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Initialises the tree and the permutation.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: The caller's contract: this is called once, at module load.
    unsafe { KEYS.init() }
    let mut secret = [0; 16];
    sys_auth::random(&mut secret);
    // Cannot fail: this is the only call.
    let _ = NUMBERS.populate(Scramble::new(u128::from_ne_bytes(secret)));
}

/// Frees the tree.
pub(super) fn exit() {
    let keys = KEYS.lock().take();
    drop(keys);
}

/// Returns a number that no auth key had before. The number does not disclose how many there were:
/// a guesser must not learn from it if a guessed key is in use.
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
    /// Returns the auth key of these bytes, 1 to `KFI_AUTH_KEY_MAX`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there are too few or too many bytes.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        Self::of(Secret::fill(bytes.len(), |place| {
            place.copy_from_slice(bytes);
            Ok(())
        })?)
    }

    /// Returns the auth key of these hexadecimal digits, two for each byte.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a character is no digit, or there are too few or too many bytes.
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

    /// Returns the auth key of a secret.
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
                // Cannot replace an entry: the number is new.
                let _ = keys.get_or_insert_with(RBTree::new).insert(node);
                return Ok(Self(value));
            }
            known
        };
        known.ok_or(ENOMEM)
    }

    /// The auth key's number, which is unique while the auth key is in use.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns whether `other` is the same auth key.
    pub fn is(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }

    /// The bytes, for the agent.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.secret.bytes()
    }

    /// Returns the prover of this auth key, for the auth handshake.
    pub(crate) fn prover(&self) -> Result<Arc<dyn Proof>> {
        let proof: Arc<dyn Proof> = Arc::new(Prover(self.clone()), GFP_KERNEL_ACCOUNT)?;
        Ok(proof)
    }
}

impl Clone for AuthKey {
    fn clone(&self) -> Self {
        // Needs no lock: `self` keeps the count above zero.
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

/// The [`Proof`] of an auth key, for providers.
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
