package golden;

import io.pravega.shared.protocol.netty.WireCommand;
import io.pravega.shared.protocol.netty.WireCommands;
import io.pravega.shared.protocol.netty.WireCommands.ChunkInfo;
import io.pravega.shared.protocol.netty.WireCommands.ConditionalAttributeUpdate;
import io.pravega.shared.protocol.netty.WireCommands.TableEntries;
import io.pravega.shared.protocol.netty.WireCommands.TableIteratorArgs;
import io.pravega.shared.protocol.netty.WireCommands.TableKey;
import io.pravega.shared.protocol.netty.WireCommands.TableValue;
import java.lang.reflect.Constructor;
import java.util.AbstractMap.SimpleImmutableEntry;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Every command of the official library, made from handed out values under our names of them. */
final class Commands {
    static final Map<String, Function<Values, WireCommand>> ALL = new LinkedHashMap<>();

    private Commands() {
    }

    static {
        connections();
        appends();
        reads();
        segments();
        merges();
        refusals();
        tables();
        tableIterations();
    }

    private static void connections() {
        ALL.put("Hello", v -> new WireCommands.Hello(
                v.int32("high_version"), v.int32("low_version")));
        ALL.put("KeepAlive", v -> new WireCommands.KeepAlive());
        ALL.put("FlushToStorage", v -> new WireCommands.FlushToStorage(
                v.int32("container_id"), v.text("delegation_token"), v.int64("request_id")));
        ALL.put("StorageFlushed", v -> new WireCommands.StorageFlushed(v.int64("request_id")));
        ALL.put("ListStorageChunks", v -> new WireCommands.ListStorageChunks(
                v.text("segment"), v.text("delegation_token"), v.int64("request_id")));
        ALL.put("StorageChunksListed", v -> new WireCommands.StorageChunksListed(
                v.int64("request_id"),
                v.list("chunks", c -> new ChunkInfo(
                        c.int64("length_in_metadata"), c.int64("length_in_storage"),
                        c.int64("start_offset"), c.text("chunk_name"),
                        c.bool("exists_in_storage")))));
    }

    private static void appends() {
        ALL.put("Padding", v -> {
            int length = v.choice("zeros", 1_003, 0, 70_000);
            return padding(length);
        });
        ALL.put("PartialEvent", v -> new WireCommands.PartialEvent(v.bytes("data")));
        ALL.put("Event", v -> new WireCommands.Event(v.bytes("data")));
        ALL.put("SetupAppend", v -> new WireCommands.SetupAppend(
                v.int64("request_id"), v.uuid("writer_id"), v.text("segment"),
                v.text("delegation_token")));
        ALL.put("AppendSetup", v -> new WireCommands.AppendSetup(
                v.int64("request_id"), v.text("segment"), v.uuid("writer_id"),
                v.int64("last_event_number")));
        ALL.put("AppendBlock", v -> new WireCommands.AppendBlock(
                v.uuid("writer_id"), v.bytes("data")));
        ALL.put("AppendBlockEnd", v -> new WireCommands.AppendBlockEnd(
                v.uuid("writer_id"), v.int32("size_of_whole_events"), v.bytes("data"),
                v.int32("event_count"), v.int64("last_event_number"), v.int64("request_id")));
        ALL.put("ConditionalAppend", v -> new WireCommands.ConditionalAppend(
                v.uuid("writer_id"), v.int64("event_number"), v.int64("expected_offset"),
                new WireCommands.Event(v.bytes("event")), v.int64("request_id")));
        ALL.put("ConditionalBlockEnd", v -> new WireCommands.ConditionalBlockEnd(
                v.uuid("writer_id"), v.int64("event_number"), v.int64("expected_offset"),
                v.bytes("data"), v.int64("request_id")));
        ALL.put("DataAppended", v -> new WireCommands.DataAppended(
                v.int64("request_id"), v.uuid("writer_id"), v.int64("event_number"),
                v.int64("previous_event_number"), v.int64("current_segment_write_offset")));
        ALL.put("ConditionalCheckFailed", v -> new WireCommands.ConditionalCheckFailed(
                v.uuid("writer_id"), v.int64("event_number"), v.int64("request_id")));
        ALL.put("InvalidEventNumber", v -> new WireCommands.InvalidEventNumber(
                v.uuid("writer_id"), v.int64("request_id"), v.text("server_stack_trace"),
                v.int64("event_number")));
    }

    private static void reads() {
        ALL.put("ReadSegment", v -> new WireCommands.ReadSegment(
                v.text("segment"), v.int64("offset"), v.int32("suggested_length"),
                v.text("delegation_token"), v.int64("request_id")));
        ALL.put("SegmentRead", v -> new WireCommands.SegmentRead(
                v.text("segment"), v.int64("offset"), v.bool("at_tail"), v.bool("end_of_segment"),
                v.bytes("data"), v.int64("request_id")));
    }

    private static void segments() {
        ALL.put("GetStreamSegmentInfo", v -> new WireCommands.GetStreamSegmentInfo(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token")));
        ALL.put("StreamSegmentInfo", v -> new WireCommands.StreamSegmentInfo(
                v.int64("request_id"), v.text("segment"), v.bool("exists"), v.bool("is_sealed"),
                v.bool("is_deleted"), v.int64("last_modified"), v.int64("write_offset"),
                v.int64("start_offset")));
        ALL.put("CreateSegment", v -> new WireCommands.CreateSegment(
                v.int64("request_id"), v.text("segment"), v.int8("scale_type"),
                v.int32("target_rate"), v.text("delegation_token"),
                v.int64("rollover_size_bytes")));
        ALL.put("SegmentCreated", v -> new WireCommands.SegmentCreated(
                v.int64("request_id"), v.text("segment")));
        ALL.put("SealSegment", v -> new WireCommands.SealSegment(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token")));
        ALL.put("SegmentSealed", v -> new WireCommands.SegmentSealed(
                v.int64("request_id"), v.text("segment")));
        ALL.put("DeleteSegment", v -> new WireCommands.DeleteSegment(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token")));
        ALL.put("SegmentDeleted", v -> new WireCommands.SegmentDeleted(
                v.int64("request_id"), v.text("segment")));
        ALL.put("UpdateSegmentPolicy", v -> new WireCommands.UpdateSegmentPolicy(
                v.int64("request_id"), v.text("segment"), v.int8("scale_type"),
                v.int32("target_rate"), v.text("delegation_token")));
        ALL.put("SegmentPolicyUpdated", v -> new WireCommands.SegmentPolicyUpdated(
                v.int64("request_id"), v.text("segment")));
        ALL.put("GetSegmentAttribute", v -> new WireCommands.GetSegmentAttribute(
                v.int64("request_id"), v.text("segment"), v.uuid("attribute_id"),
                v.text("delegation_token")));
        ALL.put("SegmentAttribute", v -> new WireCommands.SegmentAttribute(
                v.int64("request_id"), v.int64("value")));
        ALL.put("UpdateSegmentAttribute", v -> new WireCommands.UpdateSegmentAttribute(
                v.int64("request_id"), v.text("segment"), v.uuid("attribute_id"),
                v.int64("new_value"), v.int64("expected_value"), v.text("delegation_token")));
        ALL.put("SegmentAttributeUpdated", v -> new WireCommands.SegmentAttributeUpdated(
                v.int64("request_id"), v.bool("success")));
        ALL.put("TruncateSegment", v -> new WireCommands.TruncateSegment(
                v.int64("request_id"), v.text("segment"), v.int64("truncation_offset"),
                v.text("delegation_token")));
        ALL.put("SegmentTruncated", v -> new WireCommands.SegmentTruncated(
                v.int64("request_id"), v.text("segment")));
        ALL.put("CreateTransientSegment", v -> new WireCommands.CreateTransientSegment(
                v.int64("request_id"), v.uuid("writer_id"), v.text("parent_segment"),
                v.text("delegation_token")));
    }

    private static void merges() {
        ALL.put("MergeSegments", v -> new WireCommands.MergeSegments(
                v.int64("request_id"), v.text("target"), v.text("source"),
                v.text("delegation_token"),
                v.list("attribute_updates", u -> new ConditionalAttributeUpdate(
                        u.uuid("attribute_id"), u.int8("update_type"), u.int64("value"),
                        u.int64("expected")))));
        ALL.put("SegmentsMerged", v -> new WireCommands.SegmentsMerged(
                v.int64("request_id"), v.text("target"), v.text("source"),
                v.int64("new_target_write_offset")));
        ALL.put("MergeSegmentsBatch", v -> new WireCommands.MergeSegmentsBatch(
                v.int64("request_id"), v.text("target"),
                v.list("sources", s -> s.text("source")), v.text("delegation_token")));
        ALL.put("SegmentsBatchMerged", v -> {
            long requestId = v.int64("request_id");
            String target = v.text("target");
            List<String> sources = new ArrayList<>();
            List<Long> offsets = new ArrayList<>();
            v.list("sources", s -> sources.add(s.text("source"))
                    && offsets.add(s.int64("new_target_write_offset")));
            return new WireCommands.SegmentsBatchMerged(requestId, target, sources, offsets);
        });
    }

    private static void refusals() {
        ALL.put("WrongHost", v -> new WireCommands.WrongHost(
                v.int64("request_id"), v.text("segment"), v.text("correct_host"),
                v.text("server_stack_trace")));
        ALL.put("SegmentIsSealed", v -> new WireCommands.SegmentIsSealed(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace"),
                v.int64("offset")));
        ALL.put("SegmentAlreadyExists", v -> new WireCommands.SegmentAlreadyExists(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace")));
        ALL.put("NoSuchSegment", v -> new WireCommands.NoSuchSegment(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace"),
                v.int64("offset")));
        ALL.put("SegmentIsTruncated", v -> new WireCommands.SegmentIsTruncated(
                v.int64("request_id"), v.text("segment"), v.int64("start_offset"),
                v.text("server_stack_trace"), v.int64("offset")));
        ALL.put("OperationUnsupported", v -> new WireCommands.OperationUnsupported(
                v.int64("request_id"), v.text("operation_name"), v.text("server_stack_trace")));
        ALL.put("AuthTokenCheckFailed", v -> new WireCommands.AuthTokenCheckFailed(
                v.int64("request_id"), v.text("server_stack_trace"),
                WireCommands.AuthTokenCheckFailed.ErrorCode.valueOf(
                        v.choice("error_code", 0, -1, 1))));
        ALL.put("ErrorMessage", v -> new WireCommands.ErrorMessage(
                v.int64("request_id"), v.text("segment"), v.text("message"),
                WireCommands.ErrorMessage.ErrorCode.valueOf(v.choice("error_code", 0, -1, 0))));
        ALL.put("TableSegmentNotEmpty", v -> new WireCommands.TableSegmentNotEmpty(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace")));
        ALL.put("TableKeyDoesNotExist", v -> new WireCommands.TableKeyDoesNotExist(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace")));
        ALL.put("TableKeyBadVersion", v -> new WireCommands.TableKeyBadVersion(
                v.int64("request_id"), v.text("segment"), v.text("server_stack_trace")));
    }

    private static void tables() {
        ALL.put("GetTableSegmentInfo", v -> new WireCommands.GetTableSegmentInfo(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token")));
        ALL.put("TableSegmentInfo", v -> new WireCommands.TableSegmentInfo(
                v.int64("request_id"), v.text("segment"), v.int64("start_offset"),
                v.int64("length"), v.int64("entry_count"), v.int32("key_length")));
        ALL.put("CreateTableSegment", v -> new WireCommands.CreateTableSegment(
                v.int64("request_id"), v.text("segment"), v.bool("sorted_deprecated"),
                v.int32("key_length"), v.text("delegation_token"),
                v.int64("rollover_size_bytes")));
        ALL.put("DeleteTableSegment", v -> new WireCommands.DeleteTableSegment(
                v.int64("request_id"), v.text("segment"), v.bool("must_be_empty"),
                v.text("delegation_token")));
        ALL.put("UpdateTableEntries", v -> new WireCommands.UpdateTableEntries(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                entries(v, "table_entries"), v.int64("table_segment_offset")));
        ALL.put("TableEntriesUpdated", v -> new WireCommands.TableEntriesUpdated(
                v.int64("request_id"),
                v.list("updated_versions", version -> version.int64("version"))));
        ALL.put("RemoveTableKeys", v -> new WireCommands.RemoveTableKeys(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                v.list("keys", Commands::key), v.int64("table_segment_offset")));
        ALL.put("TableKeysRemoved", v -> new WireCommands.TableKeysRemoved(
                v.int64("request_id"), v.text("segment")));
        ALL.put("ReadTable", v -> new WireCommands.ReadTable(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                v.list("keys", Commands::key)));
        ALL.put("TableRead", v -> new WireCommands.TableRead(
                v.int64("request_id"), v.text("segment"), entries(v, "entries")));
    }

    private static void tableIterations() {
        ALL.put("ReadTableKeys", v -> new WireCommands.ReadTableKeys(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                v.int32("suggested_key_count"), v.part("args", Commands::iteratorArgs)));
        ALL.put("TableKeysRead", v -> new WireCommands.TableKeysRead(
                v.int64("request_id"), v.text("segment"), v.list("keys", Commands::key),
                v.bytes("continuation_token")));
        ALL.put("ReadTableEntries", v -> new WireCommands.ReadTableEntries(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                v.int32("suggested_entry_count"), v.part("args", Commands::iteratorArgs)));
        ALL.put("TableEntriesRead", v -> new WireCommands.TableEntriesRead(
                v.int64("request_id"), v.text("segment"), entries(v, "entries"),
                v.bytes("continuation_token")));
        ALL.put("ReadTableEntriesDelta", v -> new WireCommands.ReadTableEntriesDelta(
                v.int64("request_id"), v.text("segment"), v.text("delegation_token"),
                v.int64("from_position"), v.int32("suggested_entry_count")));
        ALL.put("TableEntriesDeltaRead", v -> new WireCommands.TableEntriesDeltaRead(
                v.int64("request_id"), v.text("segment"), entries(v, "entries"),
                v.bool("should_clear"), v.bool("reached_end"), v.int64("last_position")));
    }

    private static TableKey key(Values v) {
        return new TableKey(v.bytes("key"), v.int64("version"));
    }

    private static TableEntries entries(Values v, String name) {
        return new TableEntries(v.list(name, e -> new SimpleImmutableEntry<>(
                e.part("key", Commands::key), new TableValue(e.bytes("value")))));
    }

    private static TableIteratorArgs iteratorArgs(Values v) {
        return new TableIteratorArgs(
                v.bytes("continuation_token"), v.bytes("prefix_filter"), v.bytes("from_key"),
                v.bytes("to_key"));
    }

    private static WireCommand padding(int length) {
        try {
            Constructor<WireCommands.Padding> constructor =
                    WireCommands.Padding.class.getDeclaredConstructor(int.class);
            constructor.setAccessible(true);
            return constructor.newInstance(length);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }
}
