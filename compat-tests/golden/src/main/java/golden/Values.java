package golden;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.StringJoiner;
import java.util.UUID;
import java.util.function.Function;

/** Hands out the values of one command's fields and writes down, as JSON, what it handed out. */
final class Values {
    private static final int TEXT_BYTES_MAX = 65_535;
    private static final int LONG_BYTES = 70_000;

    private final Variant variant;
    private final StringJoiner json = new StringJoiner(", ", "{", "}");
    private int drawn;

    Values(Variant variant) {
        this.variant = variant;
    }

    String json() {
        return json.toString();
    }

    long int64(String name) {
        drawn++;
        long value = switch (variant) {
            case ORDINARY -> 1_000_000_000_000L * drawn + drawn;
            case LEAST -> Long.MIN_VALUE;
            case GREATEST -> Long.MAX_VALUE;
            case ODD -> -drawn;
        };
        return record(name, value, Long.toString(value));
    }

    int int32(String name) {
        drawn++;
        int value = switch (variant) {
            case ORDINARY -> 1_000 * drawn + drawn;
            case LEAST -> Integer.MIN_VALUE;
            case GREATEST -> Integer.MAX_VALUE;
            case ODD -> -drawn;
        };
        return record(name, value, Integer.toString(value));
    }

    byte int8(String name) {
        drawn++;
        byte value = switch (variant) {
            case ORDINARY -> (byte) drawn;
            case LEAST -> Byte.MIN_VALUE;
            case GREATEST -> Byte.MAX_VALUE;
            case ODD -> -1;
        };
        return record(name, value, Byte.toString(value));
    }

    boolean bool(String name) {
        drawn++;
        boolean value = variant == Variant.GREATEST || variant == Variant.ORDINARY && drawn % 2 == 0;
        return record(name, value, Boolean.toString(value));
    }

    /** One of the given numbers: some fields are enumerations to the encoder. */
    int choice(String name, int ordinary, int least, int greatest) {
        int value = switch (variant) {
            case ORDINARY, ODD -> ordinary;
            case LEAST -> least;
            case GREATEST -> greatest;
        };
        return record(name, value, Integer.toString(value));
    }

    String text(String name) {
        drawn++;
        switch (variant) {
            case ORDINARY -> {
                String value = "scope/stream-" + drawn + "/" + drawn + ".#epoch.7";
                return record(name, value, quoted(value));
            }
            case LEAST -> {
                return record(name, "", quoted(""));
            }
            case GREATEST -> {
                String piece = drawn % 2 == 0 ? "x" : "\u20ac";
                int times = TEXT_BYTES_MAX / piece.getBytes(StandardCharsets.UTF_8).length;
                return record(name, piece.repeat(times), repeated(quoted(piece), times));
            }
            default -> {
                String value = "\0a\u007f\u0080\u07ff\u0800\uffff\ud83d\ude00\udbff\udfff\0" + drawn;
                return record(name, value, quoted(value));
            }
        }
    }

    UUID uuid(String name) {
        drawn++;
        UUID value = switch (variant) {
            case ORDINARY -> new UUID(0x0123456789abcdefL + drawn, 0xfedcba9876543210L - drawn);
            case LEAST -> new UUID(0, 0);
            case GREATEST -> new UUID(-1, -1);
            case ODD -> new UUID(Long.MIN_VALUE, drawn);
        };
        String hex = value.toString().replace("-", "");
        return record(name, value, quoted(hex));
    }

    ByteBuf bytes(String name) {
        drawn++;
        byte[] piece = switch (variant) {
            case ORDINARY -> ("data " + drawn).getBytes(StandardCharsets.UTF_8);
            case LEAST -> new byte[0];
            case GREATEST -> new byte[] {(byte) drawn};
            case ODD -> new byte[] {0, -1, -128, 127, (byte) drawn};
        };
        String hex = quoted(HexFormat.of().formatHex(piece));
        if (variant != Variant.GREATEST) {
            return record(name, Unpooled.wrappedBuffer(piece), hex);
        }
        byte[] many = new byte[LONG_BYTES];
        Arrays.fill(many, piece[0]);
        return record(name, Unpooled.wrappedBuffer(many), repeated(hex, LONG_BYTES));
    }

    /** Values that are written down as an object of their own. */
    <T> T part(String name, Function<Values, T> make) {
        Values values = inner();
        T value = make.apply(values);
        return record(name, value, values.json());
    }

    /** A list of parts: of two, none, three or one. */
    <T> List<T> list(String name, Function<Values, T> make) {
        int count = switch (variant) {
            case ORDINARY -> 2;
            case LEAST -> 0;
            case GREATEST -> 3;
            case ODD -> 1;
        };
        StringJoiner items = new StringJoiner(", ", "[", "]");
        List<T> made = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            Values values = inner();
            values.drawn += 10 * (index + 1);
            made.add(make.apply(values));
            items.add(values.json());
        }
        return record(name, made, items.toString());
    }

    private Values inner() {
        Values values = new Values(variant);
        values.drawn = drawn;
        return values;
    }

    private <T> T record(String name, T value, String written) {
        json.add(quoted(name) + ": " + written);
        return value;
    }

    private static String repeated(String piece, int times) {
        return "{\"repeat\": " + piece + ", \"times\": " + times + "}";
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char unit : text.toCharArray()) {
            if (unit == '"' || unit == '\\' || unit < ' ' || unit > '~') {
                quoted.append(String.format("\\u%04x", (int) unit));
            } else {
                quoted.append(unit);
            }
        }
        return quoted.append('"').toString();
    }
}
