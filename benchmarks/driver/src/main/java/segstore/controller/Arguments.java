package segstore.controller;

import java.util.HashMap;
import java.util.Map;

/** What a line asks for. An argument without a default has to be there. */
record Arguments(String work, Map<String, String> values) {

    static Arguments parse(String line) {
        String[] words = line.trim().split(" +");
        Map<String, String> values = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int sign = words[i].indexOf('=');
            if (sign < 0) {
                throw new IllegalArgumentException("no value in " + words[i]);
            }
            values.put(words[i].substring(0, sign), words[i].substring(sign + 1));
        }
        return new Arguments(words[0], values);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(work + " needs " + name);
        }
        return value;
    }

    int count(String name) {
        return Integer.parseInt(text(name));
    }

    long nanos(String name) {
        return (long) (Double.parseDouble(text(name)) * 1e9);
    }
}
