// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of an auth key, protected against leaks through memory and output.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::{Zeroize, Zeroizing};

/// Maximum bytes of an auth key.
pub const KEY_MAX: usize = kfabric::uapi::KFI_AUTH_KEY_MAX;
/// Prefix of a key file with hexadecimal digits.
const HEX: &[u8] = b"hex:";
/// Maximum bytes of a key file: a key in hexadecimal digits, with some blanks.
const FILE_MAX: u64 = 4096;

/// An auth key: 1 to [`KEY_MAX`] bytes, which kfabric only compares.
///
/// Dropping the key overwrites its memory. Only [`AuthKey::expose`] and [`AuthKey::expose_hex`]
/// return the bytes; no formatting shows them.
///
/// ```
/// use kfauth::AuthKey;
///
/// let key = AuthKey::from_hex("00ff 10")?;
/// assert_eq!(key.expose(), [0x00, 0xff, 0x10]);
/// assert_eq!(format!("{key:?}"), "AuthKey(3 bytes)");
/// # Ok::<(), kfauth::KeyError>(())
/// ```
#[derive(Clone)]
pub struct AuthKey(Zeroizing<Vec<u8>>);

/// The fault of a key. Never contains bytes of the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no bytes, or too many.
    #[error("a key has 1 to {KEY_MAX} bytes, this one has {0}")]
    Length(usize),
    /// The text is not made of hexadecimal digits, two per byte.
    #[error("not a key: two hexadecimal digits for each byte are wanted (character {0})")]
    Hex(usize),
    /// The key could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Users other than the file's owner can read or change the file.
    #[error("{}: {why}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// The fault of the file, and a remedy.
        why: String,
    },
    /// The file does not contain a key.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault of the content.
        source: Box<KeyError>,
    },
}

impl AuthKey {
    /// Takes ownership of `bytes`.
    ///
    /// # Errors
    ///
    /// - [`KeyError::Length`] if there are no bytes, or more than [`KEY_MAX`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, KeyError> {
        let bytes = Zeroizing::new(bytes);
        match bytes.len() {
            1..=KEY_MAX => Ok(Self(bytes)),
            other => Err(KeyError::Length(other)),
        }
    }

    /// Reads hexadecimal digits, two per byte. Skips blanks, line ends and colons between bytes.
    ///
    /// # Errors
    ///
    /// - [`KeyError::Hex`] for another character, with its position, from 1.
    /// - [`KeyError::Length`] if there are no bytes, or more than [`KEY_MAX`].
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        // Full capacity from the start: a growing vector leaves copies of the key behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_MAX + 1));
        let mut high = None;
        let mut count = 0;
        for (at, c) in text.chars().enumerate() {
            let Some(digit) = c.to_digit(16) else {
                if high.is_none() && (c.is_ascii_whitespace() || c == ':') {
                    continue;
                }
                return Err(KeyError::Hex(at + 1));
            };
            // CAST: a hexadecimal digit is below 16.
            let digit = digit as u8;
            match high.take() {
                None => high = Some(digit),
                Some(high) => {
                    count += 1;
                    if count <= KEY_MAX {
                        bytes.push(high << 4 | digit);
                    }
                }
            }
        }
        if high.is_some() {
            return Err(KeyError::Hex(text.chars().count()));
        }
        match count {
            1..=KEY_MAX => Ok(Self(bytes)),
            other => Err(KeyError::Length(other)),
        }
    }

    /// Reads the content of a key file: the bytes of the key, or `hex:` and hexadecimal digits.
    ///
    /// # Errors
    ///
    /// The errors of [`AuthKey::new`] and [`AuthKey::from_hex`].
    pub fn from_content(content: &[u8]) -> Result<Self, KeyError> {
        let Some(digits) = content.strip_prefix(HEX) else {
            return Self::new(content.to_vec());
        };
        let text = std::str::from_utf8(digits).map_err(|e| KeyError::Hex(e.valid_up_to() + 1))?;
        Self::from_hex(text)
    }

    /// Reads a key file (see [`AuthKey::from_content`]). The owner must be root or the caller, and
    /// only the owner may have access.
    ///
    /// # Errors
    ///
    /// - [`KeyError::Io`] if the file cannot be read.
    /// - [`KeyError::Unsafe`] if another user owns, can read or can change the file.
    /// - [`KeyError::Content`] if the content is not a key.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io {
            path: path.to_owned(),
            source,
        };
        let bad = |why: String| KeyError::Unsafe {
            path: path.to_owned(),
            why,
        };
        // Does not block on a pipe without a writer. The checks apply to the opened file.
        let file = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(bad("not a regular file".to_owned()));
        }
        if meta.mode() & 0o077 != 0 {
            let mode = meta.mode() & 0o7777;
            let why =
                format!("mode {mode:04o}: others than its owner have rights to it: chmod 600");
            return Err(bad(why));
        }
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&meta.uid()) {
            let why = format!("it belongs to uid {}, not to root or uid {own}", meta.uid());
            return Err(bad(why));
        }
        Self::from_reader(file).map_err(|e| match e {
            KeyError::Io { source, .. } => io(source),
            other => KeyError::Content {
                path: path.to_owned(),
                source: Box::new(other),
            },
        })
    }

    /// Reads a stream to its end, such as standard input (see [`AuthKey::from_content`]).
    ///
    /// # Errors
    ///
    /// - [`KeyError::Io`] (with the path `-`) if the stream cannot be read.
    ///
    /// Also those of [`AuthKey::from_content`].
    pub fn from_reader(reader: impl Read) -> Result<Self, KeyError> {
        let room = usize::try_from(FILE_MAX).unwrap_or(usize::MAX) + 1;
        let mut content = Zeroizing::new(Vec::with_capacity(room));
        reader
            .take(FILE_MAX)
            .read_to_end(&mut content)
            .map_err(|source| KeyError::Io {
                path: PathBuf::from("-"),
                source,
            })?;
        Self::from_content(&content)
    }

    /// Returns the bytes. The caller is responsible for the secrecy of any copy.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as hexadecimal digits, for a channel with authorized readers only.
    pub fn expose_hex(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = Zeroizing::new(String::with_capacity(self.0.len() * 2));
        for byte in self.0.iter() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "a key is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Compares in constant time, if the lengths are equal.
impl PartialEq for AuthKey {
    fn eq(&self, other: &Self) -> bool {
        if self.0.len() != other.0.len() {
            return false;
        }
        let pairs = self.0.iter().zip(other.0.iter());
        let differ = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        differ == 0
    }
}

impl Eq for AuthKey {}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthKey({} bytes)", self.0.len())
    }
}

impl Zeroize for AuthKey {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

/// Reads hexadecimal digits. Error messages do not repeat the refused text.
impl<'de> serde::Deserialize<'de> for AuthKey {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;

        struct Digits;
        impl serde::de::Visitor<'_> for Digits {
            type Value = AuthKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key as a string of hexadecimal digits")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<AuthKey, E> {
                AuthKey::from_hex(text).map_err(E::custom)
            }

            fn visit_string<E: Error>(self, text: String) -> Result<AuthKey, E> {
                let text = Zeroizing::new(text);
                self.visit_str(&text)
            }

            // serde's own messages would repeat these values.
            fn visit_i64<E: Error>(self, _: i64) -> Result<AuthKey, E> {
                Err(E::custom(
                    "a key is a string of hexadecimal digits, in quotation marks",
                ))
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<AuthKey, E> {
                self.visit_i64(0)
            }

            fn visit_i128<E: Error>(self, _: i128) -> Result<AuthKey, E> {
                self.visit_i64(0)
            }

            fn visit_u128<E: Error>(self, _: u128) -> Result<AuthKey, E> {
                self.visit_i64(0)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<AuthKey, E> {
                self.visit_i64(0)
            }
        }
        // Not `deserialize_str`: its message for a number contains the number.
        from.deserialize_any(Digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn from_hex_reads_digits_and_reports_the_position() {
        for (text, bytes) in [
            ("00", &[0][..]),
            ("aBc0", &[0xab, 0xc0]),
            (" 01:02\n03\n", &[1, 2, 3]),
        ] {
            assert_eq!(AuthKey::from_hex(text).unwrap().expose(), bytes);
        }
        for (text, at) in [("0", 1), ("0g", 2), ("00 0 1", 5), ("zz", 1), ("012", 3)] {
            match AuthKey::from_hex(text) {
                Err(KeyError::Hex(n)) => assert_eq!(n, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(AuthKey::from_hex(" "), Err(KeyError::Length(0))));
        let long = "00".repeat(KEY_MAX + 1);
        assert!(matches!(AuthKey::from_hex(&long), Err(KeyError::Length(n)) if n == KEY_MAX + 1));
    }

    #[test]
    fn from_file_with_wrong_mode_or_content_is_refused() {
        let path = std::env::temp_dir().join(format!("kfauth.{}.key", std::process::id()));
        let write = |content: &[u8], mode: u32| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write(b"hex:0102\n", 0o600);
        assert_eq!(AuthKey::from_file(&path).unwrap().expose(), [1, 2]);
        write(b"raw\n", 0o400);
        assert_eq!(AuthKey::from_file(&path).unwrap().expose(), b"raw\n");
        write(b"", 0o600);
        assert!(matches!(
            AuthKey::from_file(&path),
            Err(KeyError::Content { .. })
        ));
        for mode in [0o640, 0o604, 0o620] {
            write(b"raw", mode);
            let said = AuthKey::from_file(&path).unwrap_err().to_string();
            assert!(
                said.contains("chmod 600") && !said.contains("raw"),
                "{said}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            AuthKey::from_file(&path),
            Err(KeyError::Io { .. })
        ));
        assert!(matches!(
            AuthKey::from_file(Path::new("/dev")),
            Err(KeyError::Unsafe { .. })
        ));
    }

    #[test]
    fn refused_key_text_is_not_repeated_in_the_error() {
        for text in ["\"secretsecret\"", "12345678", "-7", "1.5e300"] {
            let said = serde_json::from_str::<AuthKey>(text)
                .unwrap_err()
                .to_string();
            let inner = text.trim_matches('"');
            assert!(!said.contains(inner), "{said}");
        }
    }

    proptest! {
        #[test]
        fn key_to_hex_and_back_is_equal(bytes in proptest::collection::vec(any::<u8>(), 1..=KEY_MAX)) {
            let key = AuthKey::new(bytes.clone()).unwrap();
            prop_assert_eq!(key.expose(), &bytes[..]);
            let again = AuthKey::from_hex(&key.expose_hex()).unwrap();
            prop_assert!(again == key);
            let mut other = bytes;
            other[0] ^= 1;
            prop_assert!(AuthKey::new(other).unwrap() != key);
        }

        #[test]
        fn any_text_is_a_key_or_an_error(text in ".{0,200}") {
            let _ = AuthKey::from_hex(&text);
            let _ = AuthKey::from_content(text.as_bytes());
        }
    }
}
