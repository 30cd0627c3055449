package compat;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/**
 * The lines of the .py files below the directory named by the system property {@code compat.text}:
 * real text of real line lengths that every machine with a Python has. Line n is the same one for
 * writer and reader; past the last line it starts again.
 */
final class LibraryText {
    private final List<byte[]> lines;

    private LibraryText(List<byte[]> lines) {
        this.lines = lines;
    }

    static LibraryText load(int countMax) throws IOException {
        String directory = System.getProperty("compat.text");
        if (directory == null) {
            throw new IllegalStateException(
                    "-Dcompat.text=<directory of the Python standard library> is missing");
        }
        List<Path> files;
        try (Stream<Path> found = Files.walk(Path.of(directory))) {
            files =
                    found.filter(path -> path.toString().endsWith(".py"))
                            .filter(path -> !path.toString().contains("site-packages"))
                            .sorted()
                            .toList();
        }
        List<byte[]> lines = new ArrayList<>();
        for (Path file : files) {
            // ISO-8859-1 maps every byte to a character and back, whatever a file's encoding is.
            String text = new String(Files.readAllBytes(file), StandardCharsets.ISO_8859_1);
            for (String line : text.split("\n")) {
                if (!line.isBlank()) {
                    lines.add(line.getBytes(StandardCharsets.ISO_8859_1));
                }
            }
            if (lines.size() >= countMax) {
                break;
            }
        }
        if (lines.size() < 1000) {
            throw new IllegalStateException(directory + " holds only " + lines.size() + " lines");
        }
        return new LibraryText(lines);
    }

    byte[] line(int index) {
        return lines.get(index % lines.size());
    }
}
