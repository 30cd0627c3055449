package bookkeeper;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * The official client of BookKeeper, told by lines on standard input what to do. Each line is
 * answered by one that begins with "ok" or "error".
 *
 * <pre>
 * format                                       make a cluster without bookies
 * create DIGEST ENSEMBLE WRITE ACK PASSWORD    ok LEDGER
 * add LEDGER COUNT BYTES                       ok LAST
 * close LEDGER                                 ok LAST
 * recover LEDGER DIGEST PASSWORD               ok LAST LENGTH CRC32-of-all-entries
 * </pre>
 */
public final class LedgerTool {
    private final String uri;
    private final Map<Long, LedgerHandle> written = new HashMap<>();
    private BookKeeper client;

    private LedgerTool(String uri) {
        this.uri = uri;
    }

    /** Runs until the end of the input. The argument is where the metadata are. */
    public static void main(String[] arguments) throws Exception {
        LedgerTool tool = new LedgerTool(arguments[0]);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = "ok " + tool.carryOut(line.split(" "));
            } catch (Exception error) {
                answer = "error " + error.getClass().getSimpleName();
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    private String carryOut(String[] words) throws Exception {
        switch (words[0]) {
            case "format":
                return format();
            case "create":
                return create(words);
            case "add":
                return add(Long.parseLong(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "close":
                LedgerHandle handle = written.remove(Long.parseLong(words[1]));
                handle.close();
                return Long.toString(handle.getLastAddConfirmed());
            case "recover":
                return recover(Long.parseLong(words[1]), DigestType.valueOf(words[2]), password(words, 3));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String format() throws Exception {
        ServerConfiguration settings = new ServerConfiguration();
        settings.setMetadataServiceUri(uri);
        return Boolean.toString(BookKeeperAdmin.initNewCluster(settings));
    }

    private String create(String[] words) throws Exception {
        Map<String, byte[]> custom = new HashMap<>();
        custom.put("application", "Java".getBytes(StandardCharsets.UTF_8));
        LedgerHandle handle =
                client().createLedger(
                                Integer.parseInt(words[2]),
                                Integer.parseInt(words[3]),
                                Integer.parseInt(words[4]),
                                DigestType.valueOf(words[1]),
                                password(words, 5),
                                custom);
        written.put(handle.getId(), handle);
        return Long.toString(handle.getId());
    }

    private String add(long ledger, int count, int bytes) throws Exception {
        LedgerHandle handle = written.get(ledger);
        long last = -1;
        for (int i = 0; i < count; i++) {
            last = handle.addEntry(payload(handle.getLastAddPushed() + 1, bytes));
        }
        return Long.toString(last);
    }

    private String recover(long ledger, DigestType digest, byte[] password) throws Exception {
        LedgerHandle handle = client().openLedger(ledger, digest, password);
        CRC32 sum = new CRC32();
        long last = handle.getLastAddConfirmed();
        if (last >= 0) {
            Enumeration<LedgerEntry> entries = handle.readEntries(0, last);
            while (entries.hasMoreElements()) {
                sum.update(entries.nextElement().getEntry());
            }
        }
        return last + " " + handle.getLength() + " " + sum.getValue();
    }

    private static byte[] payload(long entry, int bytes) {
        byte[] data = new byte[bytes];
        for (int i = 0; i < bytes; i++) {
            data[i] = (byte) (entry * 31 + i);
        }
        return data;
    }

    private static byte[] password(String[] words, int index) {
        String text = words.length > index ? words[index] : "";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private BookKeeper client() throws Exception {
        if (client == null) {
            ClientConfiguration settings = new ClientConfiguration();
            settings.setMetadataServiceUri(uri);
            client = new BookKeeper(settings);
        }
        return client;
    }
}
