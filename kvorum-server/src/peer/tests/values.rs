//! Values of each type of a field, for properties. The tables of types and messages make those of structs, enums and
//! messages, so a new message is in every property.

use crate::peer::fields::Field;
use crate::peer::terms::{Held, Timestamp, VersionRow};
use crate::replica::Floor;
use crate::slow::TraceContext;
use kvorum_core::configuration::Configuration;
use kvorum_core::{
    ClusterId, Conditional, Key, Lineage, Placement, Record, Topology, UnixMillis, Value, Version,
};
use proptest::prelude::*;
use std::fmt::Debug;
use std::num::{NonZeroU64, NonZeroU128};

/// A type with any of its values.
pub(in crate::peer) trait AnyValue: Sized + Debug {
    fn any_value() -> BoxedStrategy<Self>;
}

/// Implements [`AnyValue`] for a struct, or for an enum by its variants.
macro_rules! any_value {
    ($Type:ident = $(
        $(:: $Name:ident)? $(($whole:ident: $Whole:ty))? $({ $($field:ident: $Field:ty),* })?
    );*) => {
        impl crate::peer::tests::values::AnyValue for $Type {
            fn any_value() -> proptest::strategy::BoxedStrategy<Self> {
                use proptest::strategy::{Just, Strategy, Union};
                Union::new([$({
                    let fields = (Just(()), $(<$Whole>::any_value())? $($(<$Field>::any_value()),*)?);
                    let made = fields.prop_map(|((), $($whole)? $($($field),*)?)| {
                        Self $(:: $Name)? { $(0: $whole)? $($($field),*)? }
                    });
                    made.boxed()
                }),*]).boxed()
            }
        }
    };
}
pub(in crate::peer) use any_value;

/// Implements [`AnyValue`] by a strategy.
macro_rules! any_values {
    ($($Type:ty: $strategy:expr;)*) => {$(
        impl AnyValue for $Type {
            fn any_value() -> BoxedStrategy<Self> {
                $strategy.boxed()
            }
        }
    )*};
}

any_values! {
    bool: any::<bool>();
    u8: any::<u8>();
    u16: any::<u16>();
    u32: any::<u32>();
    u64: any::<u64>();
    u128: any::<u128>();
    String: ".{0,20}";
    Timestamp: any::<u64>().prop_map(Timestamp);
    ClusterId: (1..=u128::MAX).prop_map(|id| ClusterId::new(id).unwrap());
    TraceContext: any::<(NonZeroU128, NonZeroU64)>().prop_map(|(trace, span)| TraceContext { trace, span });
    Key: prop::collection::vec(any::<u8>(), 1..20).prop_map(|bytes| Key::new(bytes).unwrap());
    Version: any::<(u64, u64)>().prop_map(|(clock, node)| Version::from_words(clock, node));
    Floor: any::<[u64; 3]>().prop_map(|[agreed, sealed, purged]| Floor { agreed, sealed, purged });
    VersionRow: (Key::any_value(), Version::any_value(), 1u16.., any::<bool>())
        .prop_map(|(key, version, from, is_tombstone)| VersionRow { key, version, from, is_tombstone });
    Conditional: (Version::any_value(), Version::any_value(), any::<u128>()).prop_map(|(origin, base, operation)| {
        Conditional { lineage: Lineage { origin, base }, operation: NonZeroU128::new(operation) }
    });
    Record: (Version::any_value(), 1u16.., Option::<UnixMillis>::any_value(), value(), conditional()).prop_map(
        |(version, from, expires, value, conditional)| Record { version, from, expires, value, conditional }
    );
    Configuration: (1..=u128::MAX, 1..5usize).prop_map(|(id, nodes)| configuration(id, nodes));
    Held: prop_oneof![Record::any_value().prop_map(Held::Whole), header_only()];
}

/// That of epoch 0 of a cluster with so many nodes.
fn configuration(id: u128, nodes: usize) -> Configuration {
    let topology = Topology::of_urls((0..nodes).map(|node| format!("http://n-{node}:1"))).unwrap();
    Configuration::genesis(ClusterId::new(id).unwrap(), &topology, &Placement::initial(&topology))
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![Just(Value::Tombstone), bytes.prop_map(|bytes| Value::Present(bytes.into()))]
}

fn header_only() -> impl Strategy<Value = Held> {
    (Record::any_value(), any::<u32>()).prop_map(|(record, value_bytes)| {
        let Record { version, from, expires, conditional, .. } = record;
        Held::HeaderOnly { version, from, expires, conditional, value_bytes }
    })
}

fn conditional() -> impl Strategy<Value = Option<Box<Conditional>>> {
    prop::option::of(Conditional::any_value().prop_map(Box::new))
}

impl<T: AnyValue + Clone + 'static> AnyValue for Option<T> {
    fn any_value() -> BoxedStrategy<Self> {
        prop::option::of(T::any_value()).boxed()
    }
}

impl<A: AnyValue + 'static, B: AnyValue + 'static> AnyValue for (A, B) {
    fn any_value() -> BoxedStrategy<Self> {
        (A::any_value(), B::any_value()).boxed()
    }
}

/// A list in an order that is allowed.
impl<T: AnyValue + Field + 'static> AnyValue for Vec<T> {
    fn any_value() -> BoxedStrategy<Self> {
        let in_order = |values: Self| {
            values.into_iter().fold(Self::new(), |mut list, value| {
                if list.last().is_none_or(|last| last.may_precede(&value)) {
                    list.push(value);
                }
                list
            })
        };
        prop::collection::vec(T::any_value(), 0..6).prop_map(in_order).boxed()
    }
}
