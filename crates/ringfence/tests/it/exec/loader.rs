//! Ways through the dynamic loader, which runs a program that the kernel was never asked for.

use super::ways;

ways! { Program:
    by_the_loader "/lib64/ld-linux-x86-64.so.2 $1 --version";
    by_the_loader_with_another_name_for_it "/lib64/ld-linux-x86-64.so.2 --argv0 true $1 --version";
    by_the_loader_with_options "/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path /usr/lib/x86_64-linux-gnu $1 --version";
    by_the_loader_from_a_folder "cd /usr/bin; /lib64/ld-linux-x86-64.so.2 ./$2 --version";
    by_the_loader_with_a_link "ln -s $1 x; /lib64/ld-linux-x86-64.so.2 ./x --version";
    by_the_loader_with_a_copy "cp $1 x; /lib64/ld-linux-x86-64.so.2 ./x --version";
    by_the_loader_with_a_copy_that_cannot_be_run "install -m 0444 $1 x; /lib64/ld-linux-x86-64.so.2 ./x --version";
    by_the_loader_with_a_name_that_is_no_text "ln -s $1 $'\\xff'; /lib64/ld-linux-x86-64.so.2 ./$'\\xff' --version";
    by_the_loader_with_a_copy_in_a_folder_that_is_no_text "mkdir $'\\xff'; cp $1 $'\\xff/x'; /lib64/ld-linux-x86-64.so.2 $'\\xff/x' --version";
    by_the_loader_with_a_descriptor "exec 7<$1; /lib64/ld-linux-x86-64.so.2 /proc/self/fd/7 --version";
    by_the_loader_with_dev_fd "exec 7<$1; /lib64/ld-linux-x86-64.so.2 /dev/fd/7 --version";
    by_the_loader_with_proc_self_root "/lib64/ld-linux-x86-64.so.2 /proc/self/root$1 --version";
    by_the_loader_with_a_link_through_proc "ln -s /proc/self/root$1 x; /lib64/ld-linux-x86-64.so.2 ./x --version";
    by_the_loader_of_a_script "printf '#!/usr/bin/env -S /lib64/ld-linux-x86-64.so.2 %s --version\\n' $1 >x; chmod +x x; ./x";
    by_a_link_to_the_loader "ln -s /lib64/ld-linux-x86-64.so.2 l; ./l $1 --version";
    by_a_copy_of_the_loader "cp /lib64/ld-linux-x86-64.so.2 l; ./l $1 --version";
    by_a_copy_of_the_loader_in_memory "$HOW memfd /lib64/ld-linux-x86-64.so.2 $1 --version";
    by_a_copy_of_the_loader_with_a_copy "cp /lib64/ld-linux-x86-64.so.2 l; cp $1 x; ./l ./x --version";
    by_ld_so "ld.so $1 --version";

    // A directory that is gone has a name that is only text: `d (deleted)`. Anyone can give that name to another one.
    by_the_loader_from_a_folder_that_is_gone "cp $1 x; mkdir d; cd d; rmdir ../d; /lib64/ld-linux-x86-64.so.2 ../x --version";
    by_the_loader_from_a_folder_whose_text_leads_elsewhere "cp $1 x; mkdir -p d other/sub; cp /usr/bin/true other/x; ln -s other/sub 'd (deleted)'; cd d; rmdir ../d; /lib64/ld-linux-x86-64.so.2 ../x --version";
    by_the_loader_from_a_descriptor_whose_text_leads_elsewhere "cp $1 x; mkdir -p d other/sub; cp /usr/bin/true other/x; ln -s other/sub 'd (deleted)'; exec 7<d; rmdir d; /lib64/ld-linux-x86-64.so.2 /proc/self/fd/7/../x --version";
    by_the_loader_with_a_link_of_another_process "exec 9<$1; sleep 10 & /lib64/ld-linux-x86-64.so.2 /proc/$!/fd/9 --version; code=$?; kill $!; exit $code";
}
