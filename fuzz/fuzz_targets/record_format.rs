//! Goal: bytes from a disk are either refused or exactly the bytes that their record is written as: writing a
//! record again loses and changes nothing.
//! Method: any bytes as a row of `records` (and as the other rows, which must not panic either).

#![no_main]

use bytes::Bytes;
use kvorum_server::storage::format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let row = Bytes::copy_from_slice(bytes);
    if let Ok(record) = format::decode_record(&row) {
        assert_eq!(format::encode_record(&record), row, "{record:?}");
        assert_eq!(format::decode_version(&row), Ok(record.version), "{record:?}");
        assert!(record.from > 0, "{record:?}");
    }
    if let Ok((at, key)) = format::decode_due_key(&row) {
        assert_eq!(format::encode_due_key(at, &key), row);
    }
    if let Ok(version) = format::decode_due_version(&row) {
        assert_eq!(format::encode_version(version), row);
    }
    if let Ok(rows) = format::delta_rows(&row).collect::<Result<Vec<_>, _>>() {
        let mut writer = format::DeltaWriter::with_capacity(row.len());
        for delta in rows {
            writer.put(delta.key, delta.value);
        }
        assert_eq!(writer.finish(), row);
    }
    if let Ok(until) = format::decode_lease(&row) {
        assert_eq!(format::encode_lease(until), row);
    }
    if let Ok(id) = format::decode_store_id(&row) {
        assert_eq!(format::encode_store_id(id), row);
    }
});
