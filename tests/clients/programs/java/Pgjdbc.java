import java.sql.*;
import java.util.*;

/** pgjdbc, the driver of most BI tools: metadata, server-side prepared statements, fetch size, batches. */
public class Pgjdbc {
    static Connection connection;

    interface Task {
        Object run() throws Exception;
    }

    static String env(String name) {
        return System.getenv(name);
    }

    static String told(ResultSet rows, int... columns) throws SQLException {
        List<String> told = new ArrayList<>();
        while (rows.next()) {
            List<String> row = new ArrayList<>();
            if (columns.length == 0) {
                for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++) {
                    Object value = rows.getObject(i);
                    row.add(value instanceof byte[] b ? Arrays.toString(b) : String.valueOf(value));
                }
            }
            for (int column : columns) {
                row.add(String.valueOf(rows.getObject(column)));
            }
            told.add(String.join("|", row));
        }
        return String.join(" / ", told);
    }

    static String summed(ResultSet rows) throws SQLException {
        long count = 0, orders = 0, deliveries = 0;
        while (rows.next()) {
            count++;
            orders += rows.getLong("order_id");
            deliveries += rows.getLong("delivery_id");
        }
        return count + " rows, " + orders + ", " + deliveries;
    }

    static String ask(String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return told(statement.executeQuery(text));
        }
    }

    static String fails(String text) {
        try {
            ask(text);
        } catch (SQLException error) {
            return error.getSQLState();
        }
        return "nothing failed";
    }

    static Object connect() throws SQLException {
        DatabaseMetaData data = connection.getMetaData();
        return data.getDatabaseProductVersion() + " " + data.getUserName() + " "
            + data.getDefaultTransactionIsolation() + " " + connection.isValid(5);
    }

    static Object introspect() throws SQLException {
        DatabaseMetaData data = connection.getMetaData();
        StringBuilder found = new StringBuilder();
        for (String schema : List.of("fleet", "shop")) {
            found.append(told(data.getTables(null, schema, "%", new String[] {"TABLE", "VIEW"}), 2, 3, 4));
            found.append(" ; ").append(told(data.getColumns(null, schema, "%", "%"), 3, 4, 5, 6, 7, 9, 11));
            found.append(" ; ").append(told(data.getPrimaryKeys(null, schema, "orders"), 4));
        }
        try (PreparedStatement prepared = connection.prepareStatement(env("JOIN"))) {
            ResultSetMetaData columns = prepared.getMetaData();
            for (int i = 1; i <= columns.getColumnCount(); i++) {
                found.append(" ").append(columns.getColumnLabel(i)).append(":").append(columns.getColumnTypeName(i))
                    .append(":").append(columns.getPrecision(i));
            }
            found.append(" ").append(prepared.getParameterMetaData().getParameterTypeName(1));
        }
        return found;
    }

    static Object parameters() throws SQLException {
        String first = null;
        try (PreparedStatement prepared = connection.prepareStatement(env("JOIN"))) {
            // The fifth execution is the first of a named statement, and what follows comes in binary.
            for (int i = 0; i < 8; i++) {
                prepared.setString(1, env("CITY"));
                prepared.setInt(2, Integer.parseInt(env("DAYS")));
                String told = told(prepared.executeQuery());
                first = first == null ? told : first;
                if (!first.equals(told)) {
                    throw new IllegalStateException("execution " + i + " gave " + told);
                }
            }
        }
        try (Statement batch = connection.createStatement()) {
            batch.execute("CREATE TEMP TABLE kept (order_id bigint)");
        }
        try (PreparedStatement batch = connection.prepareStatement("INSERT INTO kept VALUES (?)")) {
            for (int i = 1; i <= 300; i++) {
                batch.setLong(1, i);
                batch.addBatch();
            }
            batch.executeBatch();
        }
        try (Statement two = connection.createStatement()) {
            two.execute("SELECT count(*) FROM kept JOIN shop.orders USING (order_id); SELECT 1");
            String kept = told(two.getResultSet());
            two.getMoreResults();
            return first + " batch " + kept + " " + told(two.getResultSet());
        }
    }

    static Object cursor() throws SQLException {
        connection.setAutoCommit(false);
        try (Statement few = connection.createStatement()) {
            few.setFetchSize(100);
            ResultSet rows = few.executeQuery(env("CURSOR"));
            rows.next();
            // Another statement while the portal is suspended.
            return ask(env("COUNT")) + " " + summed(rows);
        } finally {
            connection.rollback();
            connection.setAutoCommit(true);
        }
    }

    static Object big() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return summed(statement.executeQuery(env("BIG")));
        }
    }

    static Object errors() throws SQLException {
        List<String> seen = new ArrayList<>(List.of(fails(env("FAILS")), ask(env("COUNT"))));
        connection.setAutoCommit(false);
        connection.setReadOnly(true);
        seen.add(ask(env("COUNT")));
        Savepoint savepoint = connection.setSavepoint();
        seen.add(fails(env("FAILS")));
        seen.add(fails(env("COUNT")));
        connection.rollback(savepoint);
        seen.add(ask(env("COUNT")));
        connection.rollback();
        connection.setReadOnly(false);
        connection.setAutoCommit(true);
        seen.add(ask(env("COUNT")));
        return seen;
    }

    static Object cancel() throws Exception {
        try (Statement slow = connection.createStatement()) {
            Thread later = new Thread(() -> {
                try {
                    Thread.sleep(1500);
                    slow.cancel();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            later.start();
            String seen = "nothing failed";
            try {
                slow.executeQuery(env("SLOW"));
            } catch (SQLException error) {
                seen = error.getSQLState();
            }
            later.join();
            return seen + " " + ask(env("COUNT"));
        }
    }

    public static void main(String[] names) throws Exception {
        String url = "jdbc:postgresql://" + env("PGHOST") + ":" + env("PGPORT") + "/" + env("PGDATABASE");
        connection = DriverManager.getConnection(url, env("PGUSER"), env("PGPASSWORD"));
        Map<String, Task> tasks = Map.of("connect", Pgjdbc::connect, "introspect", Pgjdbc::introspect,
            "parameters", Pgjdbc::parameters, "cursor", Pgjdbc::cursor, "big", Pgjdbc::big,
            "errors", Pgjdbc::errors, "cancel", Pgjdbc::cancel);
        for (String name : names) {
            String result;
            try {
                result = String.valueOf(tasks.get(name).run());
            } catch (Exception error) {
                result = "!" + error;
            }
            System.out.println(name + "\t" + result.replace("\n", " "));
        }
    }
}
