//! Ways that need no program of one's own: what a shell, its tools and the interpreters offer.

use super::ways;

ways! { Program:
    // What is known to lead around a patched shell.
    directly "$1 --version";
    by_name_alone "$2 --version";
    through_env "env $1 --version";
    through_sh "sh -c \"$2 --version\"";
    through_python_execv "python3 -c 'import os, sys; os.execv(sys.argv[1], sys.argv[1:])' $1 --version";
    without_the_wrapper_of_the_shell "unset BASH_EXEC_WRAPPER; $2 --version";
    with_an_empty_wrapper_of_the_shell "export BASH_EXEC_WRAPPER=; $2 --version";
    in_a_function "f() { \"$@\"; }; f $2 --version";
    by_exec "exec $2 --version";
    in_a_substitution "said=$($2 --version); code=$?; echo \"$said\"; exit $code";
    in_a_pipeline (0) "$2 --version | cat";

    // The shell's own.
    by_command "command $2 --version";
    by_eval "eval \"$2 --version\"";
    under_another_argument_zero "exec -a true $1 --version";
    by_exec_in_an_empty_environment "exec -c $1 --version";
    as_a_login_name "exec -l $1 --version";
    in_the_background "$2 --version & wait $!";
    in_a_coprocess "coproc C { $2 --version; }; pid=$!; cat <&\"${C[0]}\"; wait $pid";
    in_a_process_substitution (0) "cat <($2 --version)";
    by_a_trap "trap \"$2 --version\" USR1; kill -USR1 $$; exit 1";
    at_the_end "trap \"$1 --version; exit \\$?\" EXIT";
    by_an_alias "shopt -s expand_aliases; alias x=$1\nx --version";
    by_the_hash_table "hash -p $1 x; x --version";
    with_descriptors_closed "exec 0<&- 3>&-; exec $1 --version";
    in_a_restricted_shell "PATH=/usr/bin bash -r -c \"$2 --version\"";
    by_dash "dash -c \"exec $1 --version\"";
    by_a_here_document "bash <<< \"$1 --version\"";

    // Paths.
    by_dots "/usr/lib/../bin/./$2 --version";
    by_slashes "//usr///bin//$2 --version";
    from_its_folder "cd /usr/bin; ./$2 --version";
    by_bin "/bin/$2 --version";
    by_proc_self_root "/proc/self/root$1 --version";
    by_proc_self_cwd "cd /usr/bin; /proc/self/cwd/$2 --version";
    by_a_descriptor "exec 7<$1; exec /proc/self/fd/7 --version";
    by_dev_fd "exec 7<$1; exec /dev/fd/7 --version";
    by_standard_input "exec /dev/stdin --version <$1";
    by_a_link "ln -s $1 x; ./x --version";
    by_a_chain_of_links "ln -s $1 a; ln -s a b; ln -s $PWD/b c; ./c --version";
    by_a_link_with_the_name_of_another "ln -s $1 true; PATH=$PWD; true=1; command -p true; exec ./true --version";
    by_a_linked_folder "ln -s /usr/bin folder; folder/$2 --version";
    by_a_name_put_before "ln -s $1 sort; PATH=$PWD:$PATH; sort --version";
    by_a_copy "cp $1 x; ./x --version";
    by_a_copy_that_is_called_otherwise "cp $1 x; exec -a cat ./x --version";
    by_a_copy_in_tmp "d=$(mktemp -d); cp $1 $d/x; $d/x --version";
    by_a_copy_that_only_the_owner_runs "install -m 0500 $1 x; ./x --version";
    by_a_copy_that_cannot_be_written "install -m 0555 $1 x; ./x --version";
    by_a_link_to_a_copy "cp $1 x; ln x y; rm x; ./y --version";
    by_a_name_that_is_no_text "cp $1 $'\\xff\\xfe'; ./$'\\xff\\xfe' --version";
    by_a_name_of_two_lines "cp $1 $'a\\nringfence: b'; ./$'a\\nringfence: b' --version";
    by_a_long_name "n=$(printf 'x%.0s' {1..250}); mkdir -p $n/$n/$n; cp $1 $n/$n/$n/$n; $n/$n/$n/$n --version";
    by_a_copy_that_calls_itself_deleted "cp $1 \"$2 (deleted)\"; \"./$2 (deleted)\" --version";

    // Tools that run others.
    by_xargs (123) "echo --version | xargs $1";
    by_xargs_in_parallel (123) "seq 20 | xargs -P 8 -I{} $1 --version";
    by_find (1) "find $1 -exec {} --version \\; -quit; exit 1";
    by_find_in_its_folder (1) "find /usr/bin -maxdepth 1 -name $2 -execdir ./$2 --version ';'; exit 1";
    by_nice "nice $1 --version";
    by_nohup "nohup $1 --version";
    by_setsid "setsid -w $1 --version";
    by_timeout "timeout 5 $1 --version";
    by_stdbuf "stdbuf -o0 $1 --version";
    by_time "/usr/bin/time -o /dev/null $1 --version";
    by_flock "flock lock $1 --version";
    by_setpriv "setpriv --no-new-privs $1 --version";
    by_setarch "setarch -R $1 --version";
    by_prlimit "prlimit --nofile=64 $1 --version";
    by_taskset "taskset -c 0 $1 --version";
    by_ionice "ionice -c 3 $1 --version";
    by_env_split "env -S \"$2 --version\"";
    by_env_from_nothing "env -i $1 --version";
    by_make (2) "printf 'all:\\n\\t@%s --version\\n' $1 >Makefile; make -s";
    by_make_in_a_variable "printf 'x := $(shell %s --version)\\nall:;@echo \"$(x)\"\\n' $1 >Makefile; make -s; exit 1";
    by_awk "awk -v p=$1 'BEGIN { exit system(p \" --version\") != 0 }'";
    by_an_awk_pipe (1) "awk -v p=$1 'BEGIN { c = p \" --version\"; while ((c | getline line) > 0) print line; exit 1 }'";
    by_perl_exec "perl -e 'exec {$ARGV[0]} \"x\", \"--version\"' $1";
    by_perl_backticks "perl -e 'print `$ARGV[0] --version`; exit($? >> 8)' $1";
    by_sed "echo $1 --version | sed -n 's/.*/&/ep'; exit 1";
    by_tar (2) "tar -cf x.tar -I $1 /dev/null; [ -s x.tar ] && cat x.tar; tar --to-command=\"$1 --version\" -xf <(cd /; tar -cP /etc/hostname)";
    by_git_alias "git -c alias.x=\"!$1 --version\" x";
    by_node "node -e 'const r = require(\"child_process\").spawnSync(process.argv[1], [\"--version\"], {stdio: \"inherit\"}); process.exit(r.status)' $1";
    by_gcc_wrapper (1) "echo 'int x;' >x.c; gcc -wrapper $1,--version -c x.c; exit 1";
    by_split (1) "echo x | split --filter=\"$1 --version\" -; exit 1";

    // Python.
    by_subprocess "python3 -c 'import subprocess, sys; sys.exit(subprocess.call([sys.argv[1], \"--version\"]))' $1";
    by_os_posix_spawn "python3 -c 'import os, sys; p = os.posix_spawn(sys.argv[1], [\"x\", \"--version\"], {}); sys.exit(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))' $1";
    by_os_system "python3 -c 'import os, sys; sys.exit(os.waitstatus_to_exitcode(os.system(sys.argv[1] + \" --version\")))' $1";
    by_os_execve_of_a_descriptor "python3 -c 'import os, sys; os.execve(os.open(sys.argv[1], 0), [\"x\", \"--version\"], {})' $1";
    by_ctypes "python3 -c 'import ctypes, sys; c = ctypes.CDLL(None); c.execl(sys.argv[1].encode(), b\"x\", b\"--version\", None)' $1";
    by_multiprocessing "python3 -c 'import os, sys, multiprocessing as m; m.set_start_method(\"fork\"); p = m.Process(target=os.execv, args=(sys.argv[1], [\"x\", \"--version\"])); p.start(); p.join(); sys.exit(p.exitcode)' $1";
    by_asyncio "python3 -c 'import asyncio, sys\nasync def main():\n    p = await asyncio.create_subprocess_exec(sys.argv[1], \"--version\")\n    return await p.wait()\nsys.exit(asyncio.run(main()))' $1";
}
