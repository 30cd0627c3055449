package registry;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.schemaregistry.client.SchemaRegistryClient;
import io.pravega.schemaregistry.client.SchemaRegistryClientConfig;
import io.pravega.schemaregistry.client.SchemaRegistryClientFactory;
import io.pravega.schemaregistry.contract.data.Compatibility;
import io.pravega.schemaregistry.contract.data.GroupProperties;
import io.pravega.schemaregistry.contract.data.SerializationFormat;
import io.pravega.schemaregistry.serializer.avro.schemas.AvroSchema;
import io.pravega.schemaregistry.serializer.json.schemas.JSONSchema;
import io.pravega.schemaregistry.serializer.shared.impl.SerializerConfig;
import io.pravega.schemaregistry.serializers.SerializerFactory;
import java.net.URI;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;

/**
 * {@code write} runs the schema registry on a store, registers schemas of two formats, changes one,
 * and writes events; {@code read} runs a new registry on the same store and reads the events with
 * the schemas that it finds there. Prints one line beginning with {@code #} for each result.
 */
final class Readings {
    private static final String SCOPE = System.getProperty("registry.scope");
    private static final URI CONTROLLER = URI.create(System.getProperty("registry.controller"));
    private static final int COUNT = 50;

    private static final Schema FIRST =
            SchemaBuilder.record("Reading").fields().requiredInt("number").endRecord();
    private static final Schema SECOND =
            SchemaBuilder.record("Reading")
                    .fields()
                    .requiredInt("number")
                    .name("unit").type().stringType().stringDefault("none")
                    .endRecord();
    private static final Schema WRONG =
            SchemaBuilder.record("Reading").fields().requiredString("number").endRecord();

    /** An event in JSON. */
    public static final class Note {
        public String text;

        public Note() {}

        Note(String text) {
            this.text = text;
        }
    }

    private Readings() {}

    @SuppressWarnings("try") // javac warns of a close() that may be interrupted
    public static void main(String[] arguments) throws Exception {
        Thread server = new Thread(() -> io.pravega.schemaregistry.service.Main.main(new String[0]));
        server.setDaemon(true);
        server.start();
        URI address = URI.create("http://127.0.0.1:" + System.getProperty("registry.port"));
        SchemaRegistryClientConfig registry =
                SchemaRegistryClientConfig.builder().schemaRegistryUri(address).build();
        ClientConfig client = ClientConfig.builder().controllerURI(CONTROLLER).build();
        try (SchemaRegistryClient schemas =
                        SchemaRegistryClientFactory.withDefaultNamespace(registry);
                EventStreamClientFactory streams = EventStreamClientFactory.withScope(SCOPE, client)) {
            awaitRegistry(schemas);
            if (arguments[0].equals("write")) {
                createStreams(client);
                write(schemas, registry, streams);
            } else {
                read(schemas, registry, streams, client);
            }
        }
        System.exit(0);
    }

    private static void awaitRegistry(SchemaRegistryClient schemas) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                schemas.listGroups().hasNext();
                return;
            } catch (RuntimeException notYet) {
                if (attempt == 300) {
                    throw notYet;
                }
                Thread.sleep(100);
            }
        }
    }

    private static void createStreams(ClientConfig client) {
        try (StreamManager manager = StreamManager.create(client)) {
            manager.createScope(SCOPE);
            for (String stream : new String[] {"avro", "json"}) {
                manager.createStream(
                        SCOPE,
                        stream,
                        StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build());
            }
        }
    }

    private static String group(String stream) {
        return SCOPE + "-" + stream;
    }

    private static SerializerConfig serializer(SchemaRegistryClientConfig registry, String stream) {
        return SerializerConfig.builder()
                .groupId(group(stream))
                .registryConfig(registry)
                .registerSchema(true)
                .build();
    }

    private static void write(
            SchemaRegistryClient schemas,
            SchemaRegistryClientConfig registry,
            EventStreamClientFactory streams)
            throws Exception {
        schemas.addGroup(
                group("avro"),
                new GroupProperties(SerializationFormat.Avro, Compatibility.backward(), false));
        schemas.addGroup(
                group("json"),
                new GroupProperties(SerializationFormat.Json, Compatibility.allowAny(), false));
        for (Schema schema : new Schema[] {FIRST, SECOND}) {
            Serializer<Object> serializer =
                    SerializerFactory.avroSerializer(serializer(registry, "avro"), AvroSchema.of(schema));
            try (EventStreamWriter<Object> writer = writer(streams, "avro", serializer)) {
                for (int number = 0; number < COUNT; number++) {
                    GenericRecord record = new GenericData.Record(schema);
                    record.put("number", number);
                    if (schema == SECOND) {
                        record.put("unit", "metre");
                    }
                    writer.writeEvent("key", record).get();
                }
            }
        }
        Serializer<Note> notes =
                SerializerFactory.jsonSerializer(serializer(registry, "json"), JSONSchema.of(Note.class));
        try (EventStreamWriter<Note> writer = writer(streams, "json", notes)) {
            writer.writeEvent("key", new Note("written")).get();
        }
        say("versions " + schemas.getSchemaVersions(group("avro"), null).size());
        say("wrong is taken " + isTaken(schemas, WRONG));
    }

    private static boolean isTaken(SchemaRegistryClient schemas, Schema schema) {
        try {
            schemas.addSchema(group("avro"), AvroSchema.of(schema).getSchemaInfo());
            return true;
        } catch (RuntimeException refused) {
            return false;
        }
    }

    private static <T> EventStreamWriter<T> writer(
            EventStreamClientFactory streams, String stream, Serializer<T> serializer) {
        return streams.createEventWriter(stream, serializer, EventWriterConfig.builder().build());
    }

    private static void read(
            SchemaRegistryClient schemas,
            SchemaRegistryClientConfig registry,
            EventStreamClientFactory streams,
            ClientConfig client)
            throws Exception {
        Serializer<Object> avro =
                SerializerFactory.avroGenericDeserializer(serializer(registry, "avro"), AvroSchema.of(SECOND));
        int sum = 0;
        int withUnit = 0;
        for (int number = 0; number < 2 * COUNT; number++) {
            GenericRecord record = (GenericRecord) readOne(streams, client, "avro", avro, number == 0);
            sum += (Integer) record.get("number");
            withUnit += record.get("unit").toString().equals("metre") ? 1 : 0;
        }
        say("sum " + sum);
        say("with a unit " + withUnit);
        Serializer<Note> json =
                SerializerFactory.jsonDeserializer(serializer(registry, "json"), JSONSchema.of(Note.class));
        say("note " + ((Note) readOne(streams, client, "json", json, true)).text);
        say("versions " + schemas.getSchemaVersions(group("avro"), null).size());
        say("wrong is taken " + isTaken(schemas, WRONG));
        schemas.removeGroup(group("json"));
        for (Map.Entry<String, GroupProperties> each : (Iterable<Map.Entry<String, GroupProperties>>) schemas::listGroups) {
            if (each.getKey().startsWith(SCOPE)) {
                say("group " + each.getKey().substring(SCOPE.length() + 1));
            }
        }
    }

    private static EventStreamReader<?> reader;

    private static Object readOne(
            EventStreamClientFactory streams,
            ClientConfig client,
            String stream,
            Serializer<?> serializer,
            boolean isFirst) {
        if (isFirst) {
            if (reader != null) {
                reader.close();
            }
            try (ReaderGroupManager groups = ReaderGroupManager.withScope(SCOPE, client)) {
                groups.createReaderGroup(
                        stream + "-readers",
                        ReaderGroupConfig.builder().stream(Stream.of(SCOPE, stream)).build());
            }
            reader =
                    streams.createReader(
                            "reader", stream + "-readers", serializer, ReaderConfig.builder().build());
        }
        for (int attempt = 0; attempt < 100; attempt++) {
            Object event = reader.readNextEvent(500).getEvent();
            if (event != null) {
                return event;
            }
        }
        throw new IllegalStateException("no event in " + stream);
    }

    private static void say(String what) {
        System.out.println("# " + what);
    }
}
