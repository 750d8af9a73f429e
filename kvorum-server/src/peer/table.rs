//! The table of messages: macros that make an enum of messages, and its encoding, from rows.
//!
//! A row is written like a variant of an enum, with the kind byte before its name; in [`requests`] the reply follows it.
//! A kind that not every spoken version of the protocol has says since which one it is there: `[since 8]`.

/// Makes an enum of messages from rows, and an enum of their kind bytes.
macro_rules! messages {
    ($(#[$about:meta])* pub enum $Message:ident, $Kind:ident { $(
        $(#[$doc:meta])*
        $kind:literal $([since $since:literal])? $Name:ident
        $(($whole:ident: $Whole:ty))?
        $({ $($(#[$field_doc:meta])* $field:ident: $Field:ty,)* })?
    ,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $Message { $(
            $(#[$doc])*
            $Name $(($Whole))? $({ $($(#[$field_doc])* $field: $Field,)* })?,
        )* }

        /// The kind bytes. Two equal ones do not compile.
        #[derive(Clone, Copy)]
        #[repr(u8)]
        pub(super) enum $Kind { $($Name = $kind,)* }

        tagged! {
            $Message { $($kind $Name $(($whole: $Whole))? $({ $($field: $Field),* })?),* };
        }

        impl $Message {
            /// The rows of the table.
            #[cfg(test)]
            pub(super) const ROWS: &[super::table::Row] = &[$(super::table::Row {
                kind: $kind,
                since: super::table::since(&[$($since)?]),
                name: stringify!($Name),
                fields: &[
                    $(concat!(stringify!($whole), ": ", stringify!($Whole)),)?
                    $($(concat!(stringify!($field), ": ", stringify!($Field)),)*)?
                ],
            },)*];

            /// The byte that names this message.
            pub(super) fn kind(&self) -> u8 {
                match self {
                    $(Self::$Name { .. } => $Kind::$Name as u8,)*
                }
            }

            /// Refuses a kind byte that belongs to no row.
            pub(super) fn check_kind(kind: u8) -> Result<(), MessageError> {
                if Self::TAGS.contains(&kind) { Ok(()) } else { Err(MessageError::UnknownKind { kind }) }
            }

            /// Refuses a kind that version `protocol` does not have.
            pub(super) fn check_spoken(kind: u8, protocol: u16) -> Result<(), MessageError> {
                const SINCE: &[(u8, u16)] = &[$($(($kind, $since),)?)*];
                match SINCE.iter().find(|(known, since)| *known == kind && *since > protocol) {
                    Some((_, since)) => Err(MessageError::NotSpoken { kind, since: *since, protocol }),
                    None => Ok(()),
                }
            }

            /// The highest timestamp in it; 0 if it has none. Times of day, which are only compared, do not count.
            pub(super) fn newest(&self) -> u64 {
                self.newest_of_fields()
            }

            /// The message of this kind whose fields are exactly `payload`.
            fn read(kind: u8, mut payload: Bytes) -> Result<Self, MessageError> {
                let message = Self::get_fields(kind, &mut payload)?;
                match payload.len() {
                    0 => Ok(message),
                    bytes => Err(MessageError::Trailing { bytes }),
                }
            }
        }
    };
}
pub(super) use messages;

/// Makes an enum of requests, each with the reply that answers it.
macro_rules! requests {
    ($(#[$about:meta])* pub enum $Request:ident, $Kind:ident { $(
        $(#[$doc:meta])*
        $kind:literal $([since $since:literal])? $Name:ident $({ $($fields:tt)* })? => $Reply:ident,
    )* }) => {
        messages! {
            $(#[$about])*
            pub enum $Request, $Kind { $(
                $(#[$doc])*
                #[doc = concat!("Answered by [`Reply::", stringify!($Reply), "`].")]
                $kind $([since $since])? $Name $({ $($fields)* })?,
            )* }
        }

        impl $Request {
            /// The kind byte of the reply to this request, unless it is refused.
            pub(super) fn reply_kind(&self) -> u8 {
                match self {
                    $(Self::$Name { .. } => ReplyKind::$Reply as u8,)*
                }
            }
        }
    };
}
pub(super) use requests;

/// A row of the table.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) kind: u8,
    /// The first version of the protocol that has it.
    pub(super) since: u16,
    pub(super) name: &'static str,
    /// Each field as it stands in the row: its name, a colon and its type.
    pub(super) fields: &'static [&'static str],
}

/// The version that a row names, or the oldest that is spoken.
#[cfg(test)]
pub(super) const fn since(named: &[u16]) -> u16 {
    match named {
        [since] => *since,
        _ => super::PROTOCOL_OLDEST,
    }
}
