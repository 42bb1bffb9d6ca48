// SPDX-License-Identifier: GPL-2.0
//! The bytes of auth keys. Each is known once, by a number, as long as anything uses it, and zeroed
//! when nothing does.

use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    provider::Proof,
    pure::proof::{
        Mac,
        MAC, //
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
        let mut secret = KBox::new(none, GFP_KERNEL)?;
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

/// All that are in use, by hash.
struct Keys {
    list: KVVec<Arc<Value>>,
    last: u64,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before anything uses it.
    unsafe(uninit) static KEYS: Mutex<Keys> = Keys { list: KVVec::new(), last: 0 };
}

/// Readies the list.
///
/// # Safety
///
/// Called once, at module load.
pub(super) unsafe fn init() {
    // SAFETY: As the caller promises.
    unsafe { KEYS.init() }
}

/// Gives back the list's memory.
pub(super) fn exit() {
    KEYS.lock().list = KVVec::new();
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
        let mut keys = KEYS.lock();
        let from = keys.list.partition_point(|value| value.hash < hash);
        let found = keys.list[from..]
            .iter()
            .take_while(|value| value.hash == hash)
            .find(|value| sys_auth::same(value.secret.bytes(), secret.bytes()));
        if let Some(value) = found {
            value.users.fetch_add(1, Ordering::Relaxed);
            return Ok(Self(value.clone()));
        }
        keys.list.reserve(1, GFP_KERNEL)?;
        let value = Value {
            // Whether it is a new one is nobody's business who only guesses the bytes.
            number: sys_auth::hash(&(keys.last + 1).to_ne_bytes()).max(1),
            hash,
            users: AtomicUsize::new(1),
            secret,
        };
        let value = Arc::new(value, GFP_KERNEL)?;
        keys.last += 1;
        // There is room.
        let _ = keys.list.insert_within_capacity(from, value.clone());
        Ok(Self(value))
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
        let proof: Arc<dyn Proof> = Arc::new(Prover(self.clone()), GFP_KERNEL)?;
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
        let mut keys = KEYS.lock();
        if self.0.users.fetch_sub(1, Ordering::Relaxed) != 1 {
            return;
        }
        let at = keys
            .list
            .iter()
            .position(|value| value.number == self.0.number);
        let last = at.and_then(|at| keys.list.remove(at).ok());
        drop(keys);
        drop(last);
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
