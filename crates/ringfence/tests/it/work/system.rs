//! What programs ask of the system around them: language, time, users, certificates.

use super::{Work, work};

work! {
    locale_and_time_zone: Work::script("
        echo \"$LANG $LC_NUMERIC $TZ $TERM $SHELL $USER $LOGNAME\"
        date -d @0; TZ=America/New_York date -d @0; locale charmap
        printf 'über\\n' | grep -o '^.'; LC_ALL=C sort <<<$'b\\nB\\na'; [ \"$(date +%Y)\" -gt 2020 ] && echo a year
    ").says("05:30:00").says("UTF-8").says("xterm-256color");

    the_user_is_the_same: Work::script("
        id -u; id -g; touch mine; stat -c '%u %g' mine .; test -O mine && test -w . && echo mine
        getent passwd root; getent hosts localhost
    ").says("mine").says("root:");

    certificates: Work::script("
        set -- /etc/ssl/certs/*.pem; openssl version -d; openssl x509 -noout -subject -in \"$1\"
        openssl genpkey -algorithm ed25519 -out key.pem
        openssl req -x509 -key key.pem -subj /CN=work -days 1 -out cert.pem; openssl verify -CAfile cert.pem cert.pem
    ").needs(&["openssl"]).says("cert.pem: OK");

    sqlite_of_its_own: Work::script("
        sqlite3 data.db 'create table t (n); insert into t values (1), (2); select sum(n) from t;'
        sqlite3 data.db .dump
    ").needs(&["sqlite3"]).says("INSERT INTO t VALUES(2);");

    /// The names of variables that hold secrets are not handed on; what a shell needs is.
    the_environment_is_enough: Work::script("
        for name in PATH HOME LANG TERM TZ USER LOGNAME SHELL PWD; do [ -n \"${!name:-}\" ] && echo \"$name\"; done
        echo \"$PATH\"
        pwd; test -w \"$HOME\" && echo a home; bash -lc 'echo a login shell'; command -v sh env ls
    ").says("LOGNAME").says("a home").says("a login shell");
}
