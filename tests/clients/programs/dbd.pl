# Perl's DBD::Pg, which prepares at the server from the second execution on.

use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);

my $dbh = DBI->connect("dbi:Pg:", undef, undef, { RaiseError => 1, PrintError => 0, pg_enable_utf8 => 0 });

sub told { join ' / ', map { join '|', map { $_ // 'undef' } @$_ } @{ $_[0] } }

sub ask { my ($text, @values) = @_; told($dbh->selectall_arrayref($text, undef, @values)) }

sub fails {
    my ($text) = @_;
    eval { ask($text); 1 } ? 'nothing failed' : $dbh->state;
}

sub summed {
    my ($statement) = @_;
    my ($count, $sum) = (0, 0);
    while (my $row = $statement->fetchrow_hashref) { $count++; $sum += $row->{delivery_id} }
    return "$count rows, $sum";
}

my %tasks = (
    connect    => sub { "$dbh->{pg_server_version} $dbh->{pg_user} " . $dbh->ping },
    introspect => sub {
        my @found;
        for my $schema (qw(fleet shop)) {
            my $columns = $dbh->column_info(undef, $schema, '%', '%')->fetchall_arrayref;
            push @found, map { [@$_[1, 2, 3, 4, 5, 10]] } @$columns;
            push @found, map { [@$_[1, 2, 3]] } @{ $dbh->table_info(undef, $schema, '%', 'VIEW')->fetchall_arrayref };
        }
        told(\@found);
    },
    parameters => sub {
        my $statement = $dbh->prepare($ENV{JOIN});
        my @all = map { $statement->execute($ENV{CITY}, $ENV{DAYS}); told($statement->fetchall_arrayref) } 1 .. 4;
        $_ eq $all[0] or die 'the executions differ' for @all;
        $all[0];
    },
    big => sub { my $statement = $dbh->prepare($ENV{BIG}); $statement->execute; summed($statement) },
    errors => sub {
        my @seen = (fails($ENV{FAILS}), ask($ENV{COUNT}));
        $dbh->begin_work;
        push @seen, ask($ENV{COUNT}), fails($ENV{FAILS}), fails($ENV{COUNT});
        $dbh->rollback;
        join ' ', @seen, ask($ENV{COUNT});
    },
    cancel => sub {
        $dbh->do($ENV{SLOW}, { pg_async => PG_ASYNC });
        select undef, undef, undef, 1.5;
        $dbh->pg_cancel or die 'it ended by itself';
        'cancelled ' . ask($ENV{COUNT});
    },
);

$| = 1;
for my $name (@ARGV) {
    my $result = eval { $tasks{$name}->() };
    $result = "!$@" if $@;
    $result =~ s/\n/ /g;
    print "$name\t$result\n";
}
