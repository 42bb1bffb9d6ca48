// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matching of a provider's offer with a caller's hints, by the rules of `fi_getinfo(3)`.
//!
//! These are the rules for a field of the hints that is not zero. Zero means "any", except for
//! modes.
//!
//! * Capabilities: all requested ones must be offered. A message or one-sided capability without
//!   direction bits stands for all of its directions.
//! * Modes: each mode that the provider requires must be one that the caller supports. Zero means
//!   that the caller supports none; all ones mean "any".
//! * Registration modes: the same. Modes that only concern targets of one-sided operations are not
//!   required if the caller requests no such target.
//! * Sizes and limits: the requested value must not exceed the offered one.
//! * Type, protocol, names: equal. Provider names are compared regardless of ASCII case.
//! * API version and provider version: not newer than the offered one.
//!
//! The result has the requested primary capabilities and every secondary capability of the
//! provider. If the hints request no capabilities, the result has all capabilities of the provider.

use super::addr::Address;

/// `FI_MSG`.
pub const MSG: u64 = 1 << 1;
/// `FI_RMA`.
pub const RMA: u64 = 1 << 2;
/// `FI_TAGGED`.
pub const TAGGED: u64 = 1 << 3;
/// `FI_ATOMIC`.
pub const ATOMIC: u64 = 1 << 4;
/// Directions of messages: `FI_SEND`, `FI_RECV`.
pub const MSG_DIRECTIONS: u64 = 1 << 11 | 1 << 10;
/// Directions of one-sided operations at their target: `FI_REMOTE_READ`, `FI_REMOTE_WRITE`.
pub const RMA_TARGET: u64 = 1 << 12 | 1 << 13;
/// Directions of one-sided operations: `FI_READ`, `FI_WRITE` and [`RMA_TARGET`].
pub const RMA_DIRECTIONS: u64 = 1 << 8 | 1 << 9 | RMA_TARGET;
/// Primary capabilities, which a caller has only on request: those above, `FI_MULTICAST`,
/// `FI_COLLECTIVE`, `FI_NAMED_RX_CTX`, `FI_DIRECTED_RECV`. All others are secondary.
pub const PRIMARY_CAPS: u64 = MSG
    | RMA
    | TAGGED
    | ATOMIC
    | MSG_DIRECTIONS
    | RMA_DIRECTIONS
    | 1 << 5
    | 1 << 6
    | 1 << 58
    | 1 << 59;

/// `FI_MR_LOCAL`.
pub const MR_LOCAL: u64 = 1 << 2;
/// Registration modes that concern only targets: `FI_MR_RAW`, `FI_MR_VIRT_ADDR`, `FI_MR_PROV_KEY`,
/// `FI_MR_RMA_EVENT`.
pub const MR_TARGET_MODES: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 8;

/// `FI_FORMAT_UNSPEC`.
pub const FORMAT_UNSPEC: u32 = 0;
/// `FI_SOCKADDR`: any socket address.
pub const FORMAT_SOCKADDR: u32 = 1;
/// `FI_SOCKADDR_IN`.
pub const FORMAT_SOCKADDR_IN: u32 = 2;
/// `FI_SOCKADDR_IN6`.
pub const FORMAT_SOCKADDR_IN6: u32 = 3;

/// One side of a match: an offer or hints. Each field has the meaning of its namesake in `fi_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs<'a> {
    /// Capabilities.
    pub caps: u64,
    /// Modes: required by an offer, supported by hints.
    pub mode: u64,
    /// Registration modes: required by an offer, supported by hints.
    pub mr_mode: u64,
    /// Maximum length of an operation in bytes.
    pub max_msg_size: u64,
    /// Maximum length of an inject operation in bytes.
    pub inject_size: u64,
    /// Size of the transmit queue in operations.
    pub tx_size: u32,
    /// Size of the receive queue in operations.
    pub rx_size: u32,
    /// Maximum number of local buffers of an operation.
    pub iov_limit: u32,
    /// Maximum number of remote ranges of an operation.
    pub rma_iov_limit: u32,
    /// Size of remote completion data in bytes.
    pub cq_data_size: u32,
    /// Size of a key value in bytes.
    pub mr_key_size: u32,
    /// Maximum application data of a connection request in bytes.
    pub cm_data_size: u32,
    /// Endpoint type.
    pub ep_type: u32,
    /// Protocol.
    pub protocol: u32,
    /// Address format.
    pub addr_format: u32,
    /// Provider version, major << 16 | minor.
    pub prov_version: u32,
    /// API version, major << 16 | minor.
    pub api_version: u32,
    /// Source address, as a C socket address; empty means none.
    pub src_addr: &'a [u8],
    /// Provider name; a NUL ends it.
    pub prov_name: &'a [u8],
    /// Fabric name; a NUL ends it.
    pub fabric_name: &'a [u8],
    /// Domain name; a NUL ends it.
    pub domain_name: &'a [u8],
}

/// A size or limit for which the requested value exceeds the offered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`Attrs::max_msg_size`].
    MaxMsgSize,
    /// [`Attrs::inject_size`].
    InjectSize,
    /// [`Attrs::tx_size`].
    TxSize,
    /// [`Attrs::rx_size`].
    RxSize,
    /// [`Attrs::iov_limit`].
    IovLimit,
    /// [`Attrs::rma_iov_limit`].
    RmaIovLimit,
    /// [`Attrs::cq_data_size`].
    CqDataSize,
    /// [`Attrs::mr_key_size`].
    MrKeySize,
    /// [`Attrs::cm_data_size`].
    CmDataSize,
}

/// The first reason why an offer does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The requested API version is newer.
    ApiVersion,
    /// The provider has another name.
    ProvName,
    /// The requested provider version is newer.
    ProvVersion,
    /// The fabric has another name.
    FabricName,
    /// The domain has another name.
    DomainName,
    /// The endpoint type differs.
    EpType,
    /// The protocol differs.
    Protocol,
    /// The offer's addresses do not have the requested format.
    AddrFormat,
    /// The source address differs.
    SrcAddr,
    /// Requested capabilities that are not offered.
    Caps(u64),
    /// Required modes that are not supported by the caller.
    Mode(u64),
    /// Required registration modes that are not supported by the caller.
    MrMode(u64),
    /// The requested value exceeds the offered one.
    TooLarge(Limit),
}

impl Mismatch {
    /// Returns the name of the field concerned, as in `fi_info`.
    pub const fn field(self) -> &'static str {
        match self {
            Mismatch::ApiVersion => "api_version",
            Mismatch::ProvName => "prov_name",
            Mismatch::ProvVersion => "prov_version",
            Mismatch::FabricName => "fabric_name",
            Mismatch::DomainName => "domain_name",
            Mismatch::EpType => "ep_type",
            Mismatch::Protocol => "protocol",
            Mismatch::AddrFormat => "addr_format",
            Mismatch::SrcAddr => "src_addr",
            Mismatch::Caps(_) => "caps",
            Mismatch::Mode(_) => "mode",
            Mismatch::MrMode(_) => "mr_mode",
            Mismatch::TooLarge(limit) => match limit {
                Limit::MaxMsgSize => "max_msg_size",
                Limit::InjectSize => "inject_size",
                Limit::TxSize => "tx_size",
                Limit::RxSize => "rx_size",
                Limit::IovLimit => "iov_limit",
                Limit::RmaIovLimit => "rma_iov_limit",
                Limit::CqDataSize => "cq_data_size",
                Limit::MrKeySize => "mr_key_size",
                Limit::CmDataSize => "cm_data_size",
            },
        }
    }
}

/// Returns the bytes before the first NUL.
pub fn name(raw: &[u8]) -> &[u8] {
    match raw.iter().position(|&byte| byte == 0) {
        Some(end) => raw.get(..end).unwrap_or(raw),
        None => raw,
    }
}

/// Longest name of a provider whose module may be requested.
pub const MODULE_NAME: usize = 16;

/// Returns whether a module may be requested for a provider of this name: a short name of lower
/// case letters, digits, `_` and `-` that begins with a letter, as modules' names are.
pub fn is_module_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    name.len() <= MODULE_NAME
        && name.first().is_some_and(u8::is_ascii_lowercase)
        && name.iter().all(is_plain)
}

/// Adds the directions that a capability without direction bits stands for.
const fn with_directions(caps: u64) -> u64 {
    let mut all = caps;
    if caps & (MSG | TAGGED) != 0 && caps & MSG_DIRECTIONS == 0 {
        all |= MSG_DIRECTIONS;
    }
    if caps & (RMA | ATOMIC) != 0 && caps & RMA_DIRECTIONS == 0 {
        all |= RMA_DIRECTIONS;
    }
    all
}

/// Returns whether a caller with these capabilities can be the target of one-sided operations.
const fn is_rma_target(caps: u64) -> bool {
    caps & (RMA | ATOMIC) != 0 && with_directions(caps) & RMA_TARGET != 0
}

/// Returns the registration modes that concern a caller with these capabilities.
const fn mr_modes_for(mr_mode: u64, caps: u64) -> u64 {
    if is_rma_target(caps) {
        mr_mode
    } else if mr_mode & MR_LOCAL == 0 {
        0
    } else {
        mr_mode & !MR_TARGET_MODES
    }
}

/// Returns whether addresses of format `have` satisfy a request for format `want`.
const fn format_serves(have: u32, want: u32) -> bool {
    have == want
        || matches!(
            (have, want),
            (FORMAT_UNSPEC, _)
                | (_, FORMAT_UNSPEC)
                | (FORMAT_SOCKADDR, FORMAT_SOCKADDR_IN | FORMAT_SOCKADDR_IN6)
                | (FORMAT_SOCKADDR_IN | FORMAT_SOCKADDR_IN6, FORMAT_SOCKADDR)
        )
}

/// Returns `reason` as the error unless the condition holds.
fn require(holds: bool, reason: Mismatch) -> Result<(), Mismatch> {
    if holds {
        Ok(())
    } else {
        Err(reason)
    }
}

/// Checks whether the offer satisfies the hints.
///
/// # Errors
///
/// - [`Mismatch`]: the first reason why the offer does not match.
pub fn matches(have: &Attrs<'_>, want: &Attrs<'_>) -> Result<(), Mismatch> {
    require(want.api_version <= have.api_version, Mismatch::ApiVersion)?;
    matches_names(have, want)?;

    let same = |want: u32, have: u32| want == 0 || want == have;
    require(same(want.ep_type, have.ep_type), Mismatch::EpType)?;
    require(same(want.protocol, have.protocol), Mismatch::Protocol)?;
    require(
        format_serves(have.addr_format, want.addr_format),
        Mismatch::AddrFormat,
    )?;
    require(
        Address::parse(have.src_addr).serves(&Address::parse(want.src_addr)),
        Mismatch::SrcAddr,
    )?;

    let missing = want.caps & !with_directions(have.caps);
    require(missing == 0, Mismatch::Caps(missing))?;
    let missing = have.mode & !want.mode;
    require(missing == 0, Mismatch::Mode(missing))?;
    let missing = mr_modes_for(have.mr_mode, want.caps) & !want.mr_mode;
    require(missing == 0, Mismatch::MrMode(missing))?;

    matches_limits(have, want)
}

fn matches_names(have: &Attrs<'_>, want: &Attrs<'_>) -> Result<(), Mismatch> {
    let same = |want: &[u8], have: &[u8]| name(want).is_empty() || name(want) == name(have);
    require(
        name(want.prov_name).is_empty()
            || name(want.prov_name).eq_ignore_ascii_case(name(have.prov_name)),
        Mismatch::ProvName,
    )?;
    require(
        want.prov_version <= have.prov_version,
        Mismatch::ProvVersion,
    )?;
    require(
        same(want.fabric_name, have.fabric_name),
        Mismatch::FabricName,
    )?;
    require(
        same(want.domain_name, have.domain_name),
        Mismatch::DomainName,
    )
}

fn matches_limits(have: &Attrs<'_>, want: &Attrs<'_>) -> Result<(), Mismatch> {
    let limits: [(u64, u64, Limit); 9] = [
        (have.max_msg_size, want.max_msg_size, Limit::MaxMsgSize),
        (have.inject_size, want.inject_size, Limit::InjectSize),
        (have.tx_size.into(), want.tx_size.into(), Limit::TxSize),
        (have.rx_size.into(), want.rx_size.into(), Limit::RxSize),
        (
            have.iov_limit.into(),
            want.iov_limit.into(),
            Limit::IovLimit,
        ),
        (
            have.rma_iov_limit.into(),
            want.rma_iov_limit.into(),
            Limit::RmaIovLimit,
        ),
        (
            have.cq_data_size.into(),
            want.cq_data_size.into(),
            Limit::CqDataSize,
        ),
        (
            have.mr_key_size.into(),
            want.mr_key_size.into(),
            Limit::MrKeySize,
        ),
        (
            have.cm_data_size.into(),
            want.cm_data_size.into(),
            Limit::CmDataSize,
        ),
    ];
    for (have, want, limit) in limits {
        require(want <= have, Mismatch::TooLarge(limit))?;
    }
    Ok(())
}

/// Returns the result for the caller, if the offer [`matches()`] the hints.
///
/// `tx_size`, `rx_size`, `iov_limit`, `rma_iov_limit`, `inject_size` and `api_version` are the
/// requested values, if the hints have any. Capabilities follow the rule above; all other fields
/// are the offer's, without registration modes that do not concern the caller.
pub fn negotiate<'a>(have: &Attrs<'a>, want: &Attrs<'_>) -> Attrs<'a> {
    let asked = |want: u32, have: u32| if want == 0 { have } else { want };
    let caps = negotiated_caps(have, want);
    Attrs {
        caps,
        // Required modes that the caller does not support do not concern the caller, else `matches`
        // had failed.
        mr_mode: if have.mr_mode & !want.mr_mode == 0 {
            have.mr_mode
        } else {
            mr_modes_for(have.mr_mode & want.mr_mode, caps)
        },
        inject_size: if want.inject_size == 0 {
            have.inject_size
        } else {
            want.inject_size
        },
        tx_size: asked(want.tx_size, have.tx_size),
        rx_size: asked(want.rx_size, have.rx_size),
        iov_limit: asked(want.iov_limit, have.iov_limit),
        rma_iov_limit: asked(want.rma_iov_limit, have.rma_iov_limit),
        api_version: asked(want.api_version, have.api_version),
        ..*have
    }
}

fn negotiated_caps(have: &Attrs<'_>, want: &Attrs<'_>) -> u64 {
    let have_caps = with_directions(have.caps);
    if want.caps != 0 {
        let primary = with_directions(want.caps & PRIMARY_CAPS);
        // Directions implied by a capability are limited to those of the provider.
        return (primary & have_caps) | (have_caps & !PRIMARY_CAPS);
    }
    // A caller that does not support all modes of targets cannot be a target.
    if have.mr_mode & MR_TARGET_MODES & !want.mr_mode != 0 {
        return have_caps & !RMA_TARGET;
    }
    have_caps
}

/// Sorts by rank, larger first. Items of equal rank stay in order, because providers list their
/// best first. Quadratic; for lists of a few hundred items.
pub fn sort_by_rank<T>(items: &mut [T], rank: impl Fn(&T) -> u32) {
    for next in 1..items.len() {
        // The items before `next` are sorted; `next` goes after all items of at least its rank.
        let Some((sorted, rest)) = items.split_at_mut_checked(next) else {
            return;
        };
        let Some(new) = rest.first().map(&rank) else {
            return;
        };
        let place = sorted.partition_point(|item| rank(item) >= new);
        if let Some(moved) = items.get_mut(place..=next) {
            moved.rotate_right(1);
        }
    }
}
