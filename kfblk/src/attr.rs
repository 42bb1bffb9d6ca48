// SPDX-License-Identifier: GPL-2.0
//! Attributes of configfs objects: the trait [`Item`], the text of a value, and parsers.

use kernel::{
    fmt::{
        self,
        Write, //
    },
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    pure::blk::Name, //
};

/// An object that has a configfs folder.
pub(crate) trait Item {
    /// Ends the object, because its folder is removed.
    fn end(this: &Arc<Self>);

    /// Writes an attribute's value. `attr` is one of `enum kfblk_*_attr`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such attribute.
    /// - `EMSGSIZE` if the value does not fit.
    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result;

    /// Sets an attribute's value.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the value is invalid.
    /// - `EBUSY` if the object is enabled.
    /// - Errors of the action that the attribute causes.
    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result;
}

/// Buffer for an attribute's value.
pub(crate) struct Text<'a> {
    page: &'a mut [u8],
    len: usize,
    end: End,
}

/// Treatment of list entries that do not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// A line states that there are more entries.
    More,
    /// The remaining entries are left out.
    Cut,
    /// There is no buffer: bytes are only counted.
    Count,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        if self.end == End::Count {
            self.len = end;
            return Ok(());
        }
        let place = self.page.get_mut(self.len..end).ok_or(fmt::Error)?;
        for (to, from) in place.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.len = end;
        Ok(())
    }
}

/// The line that states that there are more entries.
const MORE: &str = "...\n";

impl<'a> Text<'a> {
    /// Makes the buffer of an attribute, in a page.
    pub(crate) fn of_page(page: &'a mut [u8]) -> Self {
        let end = End::More;
        Self { page, len: 0, end }
    }

    /// Makes the buffer of a complete list. Entries that do not fit are left out.
    pub(crate) fn of_list(page: &'a mut [u8]) -> Self {
        let end = End::Cut;
        Self { page, len: 0, end }
    }

    /// Makes a buffer that only counts bytes.
    pub(crate) fn count() -> Self {
        let end = End::Count;
        Self {
            page: &mut [],
            len: 0,
            end,
        }
    }

    /// Returns the number of written or counted bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes a line for each entry of a list, with `line`, until the buffer is full.
    ///
    /// # Errors
    ///
    /// - `EMSGSIZE` if not even the line for further entries fits.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        line: impl Fn(&mut Self, T) -> Result,
    ) -> Result {
        let room = match self.end {
            End::More => self.page.len().saturating_sub(MORE.len()),
            End::Cut => self.page.len(),
            End::Count => usize::MAX,
        };
        for item in items {
            let before = self.len;
            if line(self, item).is_err() || self.len > room {
                self.len = before;
                return match self.end {
                    End::More => Ok(self.write_str(MORE)?),
                    _ => Ok(()),
                };
            }
        }
        Ok(())
    }
}

/// Parses a name.
pub(crate) fn name(text: &str) -> Result<Name> {
    Name::new(text.as_bytes()).map_err(|_| EINVAL)
}

/// Parses an auth key of hexadecimal digits. Empty text means no auth key.
pub(crate) fn key(text: &str) -> Result<Option<AuthKey>> {
    match text {
        "" => Ok(None),
        digits => AuthKey::from_hex(digits.as_bytes()).map(Some),
    }
}

/// Parses a flag: 0 or 1.
pub(crate) fn flag(text: &str) -> Result<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(EINVAL),
    }
}

/// Parses a number.
pub(crate) fn number<T: core::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| EINVAL)
}

/// Parses a size in bytes, with suffix K, M, G or T for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (text.get(..text.len() - 1), 10),
        Some(b'M' | b'm') => (text.get(..text.len() - 1), 20),
        Some(b'G' | b'g') => (text.get(..text.len() - 1), 30),
        Some(b'T' | b't') => (text.get(..text.len() - 1), 40),
        _ => (Some(text), 0),
    };
    let count: u64 = number(digits.ok_or(EINVAL)?)?;
    count.checked_mul(1 << shift).ok_or(EINVAL)
}
