//! The public interfaces of the official Rust client against the controller that is named as the
//! only argument. Each check works in a scope of its own and prints `ok NAME` or `failed NAME: WHY`.
//!
//! The client itself reads the user and the authority's certificate from its environment variables.
//! It sends the user only if it is told to: it is where the variables name one.

use futures::{pin_mut, StreamExt};
use pravega_client::client_factory::ClientFactoryAsync;
use pravega_client::event::reader_group::ReaderGroupConfigBuilder;
use pravega_client::event::writer::EventWriter;
use pravega_client::index::writer::IndexWriter;
use pravega_client_config::{ClientConfig, ClientConfigBuilder};
use pravega_client_macros::Fields;
use pravega_client_shared::{
    Retention, RetentionType, ScaleType, Scaling, Scope, ScopedStream, Stream, StreamConfiguration,
    StreamCut, Timestamp, TransactionStatus, WriterId,
};
use pravega_controller_client::paginator::{list_scopes, list_streams, list_streams_for_tag};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::future::Future;
use std::io::SeekFrom;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome = Result<(), Failure>;

const READ_SECONDS_MAX: u64 = 60;
const QUIET_SECONDS: u64 = 2;

/// What a check works with: a scope that nobody else has.
struct Place {
    factory: ClientFactoryAsync,
    scope: Scope,
}

impl Place {
    fn stream(&self, name: &str) -> ScopedStream {
        ScopedStream {
            scope: self.scope.clone(),
            stream: Stream::from(name.to_string()),
        }
    }

    async fn create(&self, name: &str, segments: i32) -> Result<ScopedStream, Failure> {
        self.create_tagged(name, segments, None).await
    }

    async fn create_tagged(
        &self,
        name: &str,
        segments: i32,
        tags: Option<Vec<String>>,
    ) -> Result<ScopedStream, Failure> {
        let stream = self.stream(name);
        let configuration = configure(&stream, segments, tags);
        let created = self.factory.controller_client().create_stream(&configuration).await;
        expect("created", true, created.map_err(failure)?)?;
        Ok(stream)
    }

    /// Reads from the head, with a new group, until so many events came and none came for a while.
    async fn read(&self, stream: &ScopedStream, count: usize) -> Result<Vec<String>, Failure> {
        let name = format!("group-{}", stream.stream.name);
        let group = self.factory.create_reader_group(name, stream.clone()).await;
        let mut reader = group.create_reader("reader".to_string()).await;
        let mut events = Vec::new();
        let mut latest = SystemTime::now();
        loop {
            let patience = if events.len() < count { READ_SECONDS_MAX } else { QUIET_SECONDS };
            if latest.elapsed()?.as_secs() >= patience {
                break;
            }
            let wait = Duration::from_secs(QUIET_SECONDS);
            let Ok(acquired) = tokio::time::timeout(wait, reader.acquire_segment()).await else {
                continue;
            };
            if let Some(mut slice) = acquired.map_err(failure)? {
                for event in &mut slice {
                    events.push(String::from_utf8(event.value)?);
                    latest = SystemTime::now();
                }
                reader.release_segment(slice).await.map_err(failure)?;
            }
        }
        Ok(events)
    }
}

fn configure(stream: &ScopedStream, segments: i32, tags: Option<Vec<String>>) -> StreamConfiguration {
    StreamConfiguration {
        scoped_stream: stream.clone(),
        scaling: Scaling {
            scale_type: ScaleType::FixedNumSegments,
            target_rate: 0,
            scale_factor: 0,
            min_num_segments: segments,
        },
        retention: Retention {
            retention_type: RetentionType::None,
            retention_param: 0,
        },
        tags,
    }
}

fn failure(error: impl Debug) -> Failure {
    format!("{error:?}").into()
}

fn expect<T: PartialEq + Debug>(what: &str, expected: T, found: T) -> Outcome {
    if expected == found {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, found {found:?}").into())
}

async fn write_numbers(writer: &mut EventWriter, first: usize, end: usize) -> Outcome {
    for number in first..end {
        let event = format!("{number}").into_bytes();
        let _ = writer.write_event_by_routing_key(format!("key {}", number % 7), event).await;
    }
    writer.flush().await.map_err(failure)
}

/// Every number once, and those of each key in order.
fn expect_numbers(count: usize, events: &[String]) -> Outcome {
    let mut numbers = Vec::new();
    for event in events {
        numbers.push(event.parse::<usize>()?);
    }
    for key in 0..7 {
        let of_key: Vec<usize> = numbers.iter().copied().filter(|n| n % 7 == key).collect();
        let expected: Vec<usize> = (0..count).filter(|n| n % 7 == key).collect();
        expect("events of a key", expected, of_key)?;
    }
    Ok(())
}

async fn manage_streams(place: Place) -> Outcome {
    let controller = place.factory.controller_client();
    expect("second scope", false, controller.create_scope(&place.scope).await.map_err(failure)?)?;
    let tagged = place.create_tagged("tagged", 2, Some(vec!["red".into(), "green".into()])).await?;
    let plain = place.create("plain", 3).await?;
    expect("exists", true, controller.check_stream_exists(&plain).await.map_err(failure)?)?;
    expect("not there", false, controller.check_stream_exists(&place.stream("none")).await.map_err(failure)?)?;
    let mut found = Vec::new();
    let streams = list_streams(place.scope.clone(), controller);
    pin_mut!(streams);
    while let Some(stream) = streams.next().await {
        found.push(stream.map_err(failure)?.stream.name);
    }
    found.retain(|name| !name.starts_with('_'));
    found.sort();
    expect("streams", vec!["plain".to_string(), "tagged".to_string()], found)?;
    let mut red = Vec::new();
    let streams = list_streams_for_tag(place.scope.clone(), "red".to_string(), controller);
    pin_mut!(streams);
    while let Some(stream) = streams.next().await {
        red.push(stream.map_err(failure)?.stream.name);
    }
    expect("red streams", vec!["tagged".to_string()], red)?;
    let mut scope_is_listed = false;
    let scopes = list_scopes(controller);
    pin_mut!(scopes);
    while let Some(scope) = scopes.next().await {
        scope_is_listed |= scope.map_err(failure)? == place.scope;
    }
    expect("scope is listed", true, scope_is_listed)?;
    let changed = configure(&tagged, 2, Some(vec!["blue".into()]));
    expect("updated", true, controller.update_stream(&changed).await.map_err(failure)?)?;
    let tags = controller.get_stream_tags(&tagged).await.map_err(failure)?;
    expect("tags", Some(vec!["blue".to_string()]), tags)?;
    let configuration = controller.get_stream_configuration(&plain).await.map_err(failure)?;
    expect("segments", 3, configuration.scaling.min_num_segments)?;
    let head = controller.get_head_segments(&plain).await.map_err(failure)?;
    expect("head segments", 3, head.len())?;
    for stream in [&plain, &tagged] {
        expect("sealed", true, controller.seal_stream(stream).await.map_err(failure)?)?;
        expect("deleted", true, controller.delete_stream(stream).await.map_err(failure)?)?;
    }
    expect("deleted scope", true, controller.delete_scope(&place.scope).await.map_err(failure)?)?;
    expect("gone", false, controller.check_scope_exists(&place.scope).await.map_err(failure)?)
}

async fn write_and_read_events(place: Place) -> Outcome {
    let stream = place.create("events", 3).await?;
    let mut writer = place.factory.create_event_writer(stream.clone());
    write_numbers(&mut writer, 0, 500).await?;
    expect_numbers(500, &place.read(&stream, 500).await?)
}

async fn read_across_a_scale(place: Place) -> Outcome {
    let controller = place.factory.controller_client();
    let stream = place.create("scaled", 1).await?;
    let mut writer = place.factory.create_event_writer(stream.clone());
    write_numbers(&mut writer, 0, 100).await?;
    let current = controller.get_current_segments(&stream).await.map_err(failure)?;
    let sealed: Vec<_> = current.get_segments().iter().map(|each| each.segment.clone()).collect();
    let halves = [(0.0, 0.5), (0.5, 1.0)];
    controller.scale_stream(&stream, &sealed, &halves).await.map_err(failure)?;
    write_numbers(&mut writer, 100, 200).await?;
    let current = controller.get_current_segments(&stream).await.map_err(failure)?;
    expect("segments", 2, current.get_segments().len())?;
    expect_numbers(200, &place.read(&stream, 200).await?)
}

async fn share_a_stream_among_readers(place: Place) -> Outcome {
    let stream = place.create("shared", 4).await?;
    let mut writer = place.factory.create_event_writer(stream.clone());
    write_numbers(&mut writer, 0, 400).await?;
    let config = ReaderGroupConfigBuilder::default().read_from_head_of_stream(stream.clone()).build();
    let group = place
        .factory
        .create_reader_group_with_config(place.scope.clone(), "shared-group".to_string(), config)
        .await;
    let mut readers = vec![
        group.create_reader("one".to_string()).await,
        group.create_reader("two".to_string()).await,
    ];
    expect("readers", 2, group.list_readers().await.len())?;
    let mut events = Vec::new();
    let begun = SystemTime::now();
    while events.len() < 400 && begun.elapsed()?.as_secs() < READ_SECONDS_MAX {
        for reader in &mut readers {
            let wait = Duration::from_secs(QUIET_SECONDS);
            if let Ok(acquired) = tokio::time::timeout(wait, reader.acquire_segment()).await {
                if let Some(mut slice) = acquired.map_err(failure)? {
                    for event in &mut slice {
                        events.push(String::from_utf8(event.value)?);
                    }
                    reader.release_segment(slice).await.map_err(failure)?;
                }
            }
        }
    }
    expect_numbers(400, &events)?;
    for mut reader in readers {
        reader.reader_offline().await.map_err(failure)?;
    }
    expect("readers", 0, group.list_readers().await.len())?;
    place
        .factory
        .delete_reader_group(place.scope.clone(), "shared-group".to_string())
        .await
        .map_err(failure)
}

async fn truncate_a_stream(place: Place) -> Outcome {
    let controller = place.factory.controller_client();
    let stream = place.create("truncated", 1).await?;
    let mut writer = place.factory.create_event_writer(stream.clone());
    for event in ["first", "second"] {
        let _ = writer.write_event(event.as_bytes().to_vec()).await;
    }
    writer.flush().await.map_err(failure)?;
    let cut = StreamCut {
        scoped_stream: stream.clone(),
        segment_offset_map: HashMap::from([(0, 8 + "first".len() as i64)]),
    };
    expect("truncated", true, controller.truncate_stream(&cut).await.map_err(failure)?)?;
    expect("events", vec!["second".to_string()], place.read(&stream, 1).await?)
}

async fn commit_and_abort_transactions(place: Place) -> Outcome {
    let stream = place.create("transactions", 2).await?;
    let mut writer = place.factory.create_transactional_event_writer(stream.clone(), WriterId(7)).await;
    let mut aborted = writer.begin().await.map_err(failure)?;
    let mut committed = writer.begin().await.map_err(failure)?;
    for number in 0..50 {
        let key = Some(format!("key {}", number % 7));
        aborted.write_event(key.clone(), b"never".to_vec()).await.map_err(failure)?;
        committed.write_event(key, format!("{number}").into_bytes()).await.map_err(failure)?;
    }
    expect("status", TransactionStatus::Open, committed.check_status().await.map_err(failure)?)?;
    aborted.abort().await.map_err(failure)?;
    committed.commit(Timestamp(1)).await.map_err(failure)?;
    let events = place.read(&stream, 50).await?;
    expect("status", TransactionStatus::Committed, committed.check_status().await.map_err(failure)?)?;
    expect_numbers(50, &events)
}

async fn write_and_read_bytes(place: Place) -> Outcome {
    let stream = place.create("bytes", 1).await?;
    let data: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    let mut writer = place.factory.create_byte_writer(stream.clone()).await;
    let mut written = 0;
    while written < data.len() {
        written += writer.write(&data[written..]).await.map_err(failure)?;
    }
    writer.flush().await.map_err(failure)?;
    expect("offset", data.len() as u64, writer.current_offset())?;
    let mut reader = place.factory.create_byte_reader(stream.clone()).await;
    expect("tail", data.len() as u64, reader.current_tail().await?)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 4096];
    while found.len() < data.len() {
        let count = reader.read(&mut buffer).await.map_err(failure)?;
        found.extend_from_slice(&buffer[..count]);
    }
    expect("bytes", true, data == found)?;
    reader.seek(SeekFrom::Start(1000)).await?;
    let count = reader.read(&mut buffer).await.map_err(failure)?;
    expect("bytes behind a seek", true, count > 0 && data[1000..1000 + count] == buffer[..count])?;
    writer.truncate_data_before(5000).await.map_err(failure)?;
    expect("head", 5000, reader.current_head().await?)?;
    writer.seal().await.map_err(failure)?;
    expect("write to a sealed stream", true, seal_is_seen(&mut writer).await)
}

async fn seal_is_seen(writer: &mut pravega_client::byte::ByteWriter) -> bool {
    writer.write(b"more").await.is_err() || writer.flush().await.is_err()
}

#[derive(Fields, Debug, PartialOrd, PartialEq)]
struct Reading {
    id: u64,
    time: u64,
}

async fn search_an_index(place: Place) -> Outcome {
    let stream = place.create("index", 1).await?;
    let mut writer: IndexWriter<Reading> = place.factory.create_index_writer(stream.clone()).await;
    for number in 0..100u64 {
        let fields = Reading { id: number, time: number * 10 };
        let data = format!("record {number}").into_bytes();
        writer.append(fields, data).await.map_err(failure)?;
    }
    writer.flush().await.map_err(failure)?;
    let reader = place.factory.create_index_reader(stream.clone()).await;
    expect("first", b"record 0".to_vec(), reader.first_record_data().await.map_err(failure)?)?;
    expect("last", b"record 99".to_vec(), reader.last_record_data().await.map_err(failure)?)?;
    let offset = reader.search_offset(("time", 395)).await.map_err(failure)?;
    let end = reader.tail_offset().await.map_err(failure)?;
    let records = reader.read(offset, end).map_err(failure)?;
    pin_mut!(records);
    let mut found = Vec::new();
    while let Some(record) = records.next().await {
        found.push(String::from_utf8(record.map_err(failure)?)?);
    }
    let expected: Vec<String> = (40..100).map(|number| format!("record {number}")).collect();
    expect("records", expected, found)
}

async fn keep_a_table(place: Place) -> Outcome {
    let table = place.factory.create_table(place.scope.clone(), "table".to_string()).await;
    let key = "key".to_string();
    let version = table.insert(&key, &1i64, -1).await.map_err(failure)?;
    let newer = table.insert_conditionally(&key, &2i64, version, -1).await.map_err(failure)?;
    expect("stale update", true, table.insert_conditionally(&key, &3i64, version, -1).await.is_err())?;
    let found: Option<(i64, i64)> = table.get(&key).await.map_err(failure)?;
    expect("value", Some((2, newer)), found)?;
    let names: Vec<String> = (0..50).map(|number| format!("name {number}")).collect();
    let values: Vec<i64> = (0..50).collect();
    table.insert_all(names.iter().zip(&values).collect(), -1).await.map_err(failure)?;
    let mut entries = BTreeMap::new();
    {
        let stream = table.read_entries_stream::<String, i64>(7);
        pin_mut!(stream);
        while let Some(entry) = stream.next().await {
            let (name, value, _) = entry.map_err(failure)?;
            entries.insert(name, value);
        }
    }
    expect("entries", 51, entries.len())?;
    expect("an entry", Some(&31), entries.get("name 31"))?;
    table.remove_all(names.iter().collect(), -1).await.map_err(failure)?;
    let gone: Option<(i64, i64)> = table.get(&names[0]).await.map_err(failure)?;
    expect("removed", None, gone)
}

async fn agree_by_synchronizers(place: Place) -> Outcome {
    let name = "state".to_string();
    let mut one = place.factory.create_synchronizer(place.scope.clone(), name.clone()).await;
    let mut other = place.factory.create_synchronizer(place.scope.clone(), name).await;
    for round in 0..10i32 {
        let writer = if round % 2 == 0 { &mut one } else { &mut other };
        writer
            .insert(|update| {
                let count = update.get_inner_map("rounds").len();
                let (key, kind) = (format!("round {count}"), "i32".to_string());
                update.insert("rounds".to_string(), key, kind, Box::new(round));
                Ok(())
            })
            .await
            .map_err(failure)?;
    }
    one.fetch_updates().await.map_err(failure)?;
    expect("rounds", 10, one.get_inner_map("rounds").len())?;
    one.remove(|update| update.insert_tombstone("rounds".to_string(), "round 3".to_string()))
        .await
        .map_err(failure)?;
    // Others hear of a removal only if they fetch between its two steps.
    expect("after a removal", true, one.get("rounds", "round 3").is_none())
}

async fn run<F: Future<Output = Outcome>>(
    config: &ClientConfig,
    name: &str,
    check: impl Fn(Place) -> F,
) -> Outcome {
    let handle = tokio::runtime::Handle::current();
    // With credentials the factory blocks, which a thread that polls tasks may not do.
    let factory =
        tokio::task::block_in_place(|| ClientFactoryAsync::new(config.clone(), handle));
    let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let scope = Scope::from(format!("rust-{}-{unique}", name.replace(' ', "-")));
    factory.controller_client().create_scope(&scope).await.map_err(failure)?;
    check(Place { factory, scope }).await
}

macro_rules! check {
    ($config:expr, $failed:expr, $($check:ident),*) => {
        $(
            let name = stringify!($check).replace('_', " ");
            match run($config, &name, $check).await {
                Ok(()) => println!("ok {name}"),
                Err(why) => {
                    $failed = true;
                    println!("failed {name}: {why}");
                }
            }
        )*
    };
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let uri = std::env::args().nth(1).ok_or("name the controller, as tcp://HOST:PORT")?;
    let config = ClientConfigBuilder::default()
        .controller_uri(uri.as_str())
        .is_auth_enabled(std::env::var_os("pravega_client_auth_method").is_some())
        .build()
        .map_err(failure)?;
    let mut failed = false;
    check!(
        &config,
        failed,
        manage_streams,
        write_and_read_events,
        read_across_a_scale,
        share_a_stream_among_readers,
        truncate_a_stream,
        commit_and_abort_transactions,
        write_and_read_bytes,
        search_an_index,
        keep_a_table,
        agree_by_synchronizers
    );
    std::process::exit(i32::from(failed));
}
