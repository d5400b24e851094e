import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Reads documents, a line of Base64 each, as Apache's broker reads a body; prints its fields. */
public class Json {
    public enum Kind { FIRST, SECOND }

    /** A body with a field of each kind that bodies have. */
    public static class Body extends RemotingSerializable {
        private long number;
        private boolean truth;
        private String text;
        private Kind kind;

        public long getNumber() { return number; }
        public void setNumber(long number) { this.number = number; }
        public boolean isTruth() { return truth; }
        public void setTruth(boolean truth) { this.truth = truth; }
        public String getText() { return text; }
        public void setText(String text) { this.text = text; }
        public Kind getKind() { return kind; }
        public void setKind(Kind kind) { this.kind = kind; }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String said;
            try {
                Body body = RemotingSerializable.decode(Base64.getDecoder().decode(line), Body.class);
                said = String.join("\t", Long.toString(body.number), Boolean.toString(body.truth),
                    body.text == null ? "null" : "=" + body.text,
                    body.kind == null ? "null" : body.kind.name());
            } catch (Exception error) {
                said = "refused";
            }
            System.out.println(
                Base64.getEncoder().encodeToString(said.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
