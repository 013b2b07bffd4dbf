// Debezium's embedded engine with a consumer that counts, and what it took.
// Arguments: how many changes, then the connector's settings, each as name=value. Measured from the first change, which leaves
// the start of the virtual machine out.
import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

public class Debezium {
    static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    static double seconds() {
        return System.nanoTime() / 1e9;
    }

    static double megabytes() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM")) return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
        }
        return Double.NaN;
    }

    static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.setProperty("name", "peer");
        settings.setProperty("topic.prefix", "peer");
        settings.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        settings.setProperty("offset.flush.interval.ms", "60000");
        settings.setProperty("key.converter.schemas.enable", "false");
        settings.setProperty("value.converter.schemas.enable", "false");
        settings.setProperty("tombstones.on.delete", "false");
        for (int at = 1; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            settings.setProperty(setting[0], setting[1]);
        }
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        long wanted = Long.parseLong(arguments[0]);
        AtomicLong count = new AtomicLong();
        double[] began = new double[2];
        double[] ended = new double[2];
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings(arguments))
            .using((ok, message, error) -> {
                if (done.getCount() > 0) {
                    System.err.println("Debezium has ended: " + message + " " + error);
                    Runtime.getRuntime().halt(1);
                }
            })
            .notifying((changes, committer) -> {
                if (began[0] == 0) {
                    began[0] = seconds();
                    began[1] = cpuSeconds();
                }
                for (ChangeEvent<String, String> change : changes) {
                    if (change.value() != null) count.incrementAndGet();
                    committer.markProcessed(change);
                }
                committer.markBatchFinished();
                if (count.get() >= wanted && ended[0] == 0) {
                    ended[0] = seconds();
                    ended[1] = cpuSeconds();
                    done.countDown();
                }
            })
            .build();
        Executors.newSingleThreadExecutor().execute(engine);
        done.await();
        double rate = count.get() / (ended[0] - began[0]);
        double cpu = (ended[1] - began[1]) / count.get() * 1e6;
        System.out.printf(Locale.ROOT, "{\"rate\":%f,\"cpu\":%f,\"megabytes\":%f}%n", rate, cpu, megabytes());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
