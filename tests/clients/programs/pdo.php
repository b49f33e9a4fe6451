<?php
// PHP's PDO, with the server's prepared statements and without (ATTR_EMULATE_PREPARES).

$dsn = sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'));
$db = new PDO($dsn, getenv('PGUSER'), getenv('PGPASSWORD'), [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$db->setAttribute(PDO::ATTR_EMULATE_PREPARES, getenv('EMULATE') === '1');

function told(PDOStatement $rows): string
{
    $told = [];
    foreach ($rows->fetchAll(PDO::FETCH_NUM) as $row) {
        $told[] = implode('|', array_map(fn ($v) => is_resource($v) ? bin2hex(stream_get_contents($v)) : var_export($v, true), $row));
    }
    return implode(' / ', $told);
}

function ask(string $text, array $values = []): string
{
    global $db;
    $statement = $db->prepare($text);
    $statement->execute($values);
    return told($statement);
}

function fails(string $text): string
{
    try {
        ask($text);
    } catch (PDOException $error) {
        return $error->getCode();
    }
    return 'nothing failed';
}

$tasks = [
    'connect' => fn () => $db->getAttribute(PDO::ATTR_SERVER_VERSION) . ' ' . ask('SELECT current_user'),
    'introspect' => function () use ($db) {
        $statement = $db->query(getenv('BIG') . ' LIMIT 1');
        $found = [];
        for ($i = 0; $i < $statement->columnCount(); $i++) {
            $column = $statement->getColumnMeta($i);
            $found[] = $column['name'] . ':' . $column['native_type'];
        }
        return implode(' ', $found) . ask("SELECT table_name, column_name, udt_name FROM information_schema.columns"
            . " WHERE table_schema IN ('shop', 'fleet') ORDER BY 1, ordinal_position");
    },
    'parameters' => fn () => ask(getenv('JOIN'), [getenv('CITY'), (int) getenv('DAYS')]),
    'cursor' => function () use ($db) {
        $db->beginTransaction();
        $cursor = $db->prepare(getenv('CURSOR'), [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $cursor->execute();
        [$count, $sum] = [0, 0];
        while ($row = $cursor->fetch(PDO::FETCH_ASSOC, PDO::FETCH_ORI_NEXT)) {
            $count++;
            $sum += $row['delivery_id'];
        }
        $first = $cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_FIRST);
        $db->rollBack();
        return "$count rows, $sum, $first[0]";
    },
    'big' => function () use ($db) {
        [$count, $sum] = [0, 0];
        foreach ($db->query(getenv('BIG'), PDO::FETCH_ASSOC) as $row) {
            $count++;
            $sum += $row['delivery_id'];
        }
        return "$count rows, $sum";
    },
    'errors' => function () use ($db) {
        $seen = [fails(getenv('FAILS')), ask(getenv('COUNT'))];
        $db->beginTransaction();
        array_push($seen, ask(getenv('COUNT')), fails(getenv('FAILS')), fails(getenv('COUNT')));
        $db->rollBack();
        $seen[] = ask(getenv('COUNT'));
        return implode(' ', $seen);
    },
];
foreach (array_slice($argv, 1) as $name) {
    try {
        $result = $tasks[$name]();
    } catch (Throwable $error) {
        $result = '!' . $error->getMessage();
    }
    echo "$name\t", str_replace("\n", ' ', $result), "\n";
}
