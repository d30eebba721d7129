//! Devices of tests that hand most calls on to another device.

/// Methods of a `Device` that hand their calls on to the device in a field.
macro_rules! hand_on {
    ($field:ident: $($method:ident),*) => { $(hand_on!(@$method $field);)* };
    (@engine $field:ident) => {
        fn engine(&self) -> &'static str {
            self.$field.engine()
        }
    };
    (@stats $field:ident) => {
        fn stats(&self) -> IoStats {
            self.$field.stats()
        }
    };
    (@create $field:ident) => {
        fn create(&self, name: &str) -> Result<FileHandle> {
            self.$field.create(name)
        }
    };
    (@open $field:ident) => {
        fn open(&self, name: &str) -> Result<FileHandle> {
            self.$field.open(name)
        }
    };
    (@len $field:ident) => {
        fn len(&self, file: &FileHandle) -> Result<u64> {
            self.$field.len(file)
        }
    };
    (@submit $field:ident) => {
        fn submit(&self, request: Request) {
            self.$field.submit(request);
        }
    };
    (@drive $field:ident) => {
        fn drive(&self) {
            self.$field.drive();
        }
    };
    (@rename $field:ident) => {
        fn rename(&self, source: &str, target: &str) -> Result<()> {
            self.$field.rename(source, target)
        }
    };
    (@remove $field:ident) => {
        fn remove(&self, name: &str) -> Result<()> {
            self.$field.remove(name)
        }
    };
    (@sync_directory $field:ident) => {
        fn sync_directory(&self) -> Result<()> {
            self.$field.sync_directory()
        }
    };
    (@list $field:ident) => {
        fn list(&self) -> Result<Vec<String>> {
            self.$field.list()
        }
    };
    (@lock $field:ident) => {
        fn lock(&self) -> Result<Box<dyn Send + Sync>> {
            self.$field.lock()
        }
    };
}

pub(crate) use hand_on;
