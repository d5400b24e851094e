import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of Apache's mqadmin in one process, because a process of its own takes a second for
 * each. A line of the input is `SECONDS<tab>COMMAND<tab>ARGUMENT...`; the answer is one line:
 * `done` or `running` (after SECONDS), and the output in base64.
 */
public class Mqadmin {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", -1);
            String[] command = new String[parts.length - 1];
            System.arraycopy(parts, 1, command, 0, command.length);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(output, true, "UTF-8");
            System.setOut(stream);
            System.setErr(stream);
            Thread thread = new Thread(() -> MQAdminStartup.main0(command, null));
            thread.setDaemon(true);
            thread.start();
            long stop = System.nanoTime() + 1_000_000_000L * Integer.parseInt(parts[0]);
            while (thread.isAlive() && System.nanoTime() < stop) {
                thread.join(20);
                hastenShutdown(thread);
            }
            String state = thread.isAlive() ? "running" : "done";
            String text = Base64.getEncoder().encodeToString(output.toByteArray());
            answers.println(state + "\t" + text);
            answers.flush();
        }
        answers.close();
        System.setOut(new PrintStream(new ByteArrayOutputStream()));
        System.setErr(System.out);
        Runtime.getRuntime().halt(0);
    }

    /** A client that ends waits up to three seconds for a thread that polls a queue: wake it. */
    private static void hastenShutdown(Thread command) {
        for (StackTraceElement frame : command.getStackTrace()) {
            if (frame.getClassName().endsWith(".NettyRemotingClient")
                && frame.getMethodName().equals("shutdown")) {
                for (Thread each : Thread.getAllStackTraces().keySet()) {
                    if (each.getName().equals("NettyEventExecutor")) {
                        each.interrupt();
                    }
                }
            }
        }
    }
}
