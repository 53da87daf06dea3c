# Installs kiln for this user on Windows: the program, its completions, and the licenses. Needs no administrator.
#
#   irm RELEASES/latest/download/install.ps1 | iex
#   & ([scriptblock]::Create((irm RELEASES/latest/download/install.ps1))) -Version 1.2.3
#
#   -Version X     this release instead of the newest
#   -Force         also replaces a program kiln that this script did not install
#   -ModifyPath    adds the folder to the user's PATH
#   -Uninstall     removes everything that this script installed
#
# Variables: KILN_INSTALL_DIR (the folder of the program, by default %LOCALAPPDATA%\Programs\kiln), KILN_RELEASES (the address below
# which releases are: latest/download/FILE and download/vX/FILE). Runs in Windows PowerShell 5.1 and PowerShell 7.
#
# Everything is in a function, and the last line starts it: of a download that was cut, nothing runs.
[CmdletBinding()]
param([string]$Version = '', [switch]$Force, [switch]$ModifyPath, [switch]$Uninstall)

function Install-Kiln {
    param([string]$Version, [bool]$Force, [bool]$ModifyPath, [bool]$Uninstall)
    $ErrorActionPreference = 'Stop'
    $ProgressPreference = 'SilentlyContinue' # The bar makes downloads slow in 5.1.

    $data = Join-Path $env:LOCALAPPDATA 'kiln'
    $receipt = Join-Path $data 'receipt.json'
    $list = Join-Path $data 'installed.txt'
    $utf8 = New-Object System.Text.UTF8Encoding $false

    if ($Uninstall) {
        if (-not (Test-Path -LiteralPath $list)) { throw "$list is missing: this script has installed nothing here" }
        $paths = @([IO.File]::ReadAllLines($list))
        foreach ($path in $paths) {
            if (Test-Path -LiteralPath $path -PathType Leaf) { Remove-Item -LiteralPath $path -Force }
        }
        # An update leaves the program that it replaced.
        foreach ($path in $paths) {
            if ($path.EndsWith('\kiln.exe')) {
                $old = $path.Substring(0, $path.Length - 4) + '.old.exe'
                if (Test-Path -LiteralPath $old) { Remove-Item -LiteralPath $old -Force }
            }
        }
        # Only what -ModifyPath added.
        $added = Join-Path $data 'path.txt'
        if (Test-Path -LiteralPath $added) {
            foreach ($path in [IO.File]::ReadAllLines($added)) { Set-KilnPath -Folder $path -Remove $true | Out-Null }
            Remove-Item -LiteralPath $added -Force
        }
        Remove-Item -LiteralPath $list -Force
        if (Test-Path -LiteralPath $receipt) { Remove-Item -LiteralPath $receipt -Force }
        # The last folder was made last.
        [array]::Reverse($paths)
        foreach ($path in $paths) {
            if ((Test-Path -LiteralPath $path -PathType Container) -and -not (Get-ChildItem -LiteralPath $path -Force)) {
                Remove-Item -LiteralPath $path -Force
            }
        }
        Write-Host 'kiln is uninstalled'
        return
    }

    $releases = $env:KILN_RELEASES
    if (-not $releases) { $releases = '@RELEASES@' }
    $releases = $releases.TrimEnd('/')
    if ($releases.StartsWith('@')) { throw 'this copy of the script belongs to no release: set KILN_RELEASES' }
    if ($releases -notmatch '^https://' -and $releases -notmatch '^http://(127\.0\.0\.1|localhost)[:/]') {
        throw "KILN_RELEASES is no https address: $releases"
    }
    # A 32-bit PowerShell on a 64-bit system has the real CPU in the second variable.
    $cpu = $env:PROCESSOR_ARCHITEW6432
    if (-not $cpu) { $cpu = $env:PROCESSOR_ARCHITECTURE }
    if ($cpu -eq 'ARM64') { Write-Host 'kiln for x86_64 is installed; Windows emulates it on this CPU' }
    elseif ($cpu -ne 'AMD64') { throw "there is no program for $cpu; build it from the sources" }

    $folder = $env:KILN_INSTALL_DIR
    if (-not $folder) { $folder = Join-Path $env:LOCALAPPDATA 'Programs\kiln' }
    $folder = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($folder).TrimEnd('\')
    $program = Join-Path $folder 'kiln.exe'
    $made = New-Object 'System.Collections.Generic.List[string]'
    if (Test-Path -LiteralPath $list) { $made.AddRange([string[]][IO.File]::ReadAllLines($list)) }
    if ((Test-Path -LiteralPath $program) -and -not $Force -and -not $made.Contains($program)) {
        throw "$program is there, and this script did not install it; -Force replaces it"
    }

    if ([Net.ServicePointManager]::SecurityProtocol -ne 0) {
        [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
    }
    $work = Join-Path ([IO.Path]::GetTempPath()) ('kiln.' + [Guid]::NewGuid().ToString('N'))
    New-Item -ItemType Directory -Path $work | Out-Null
    $new = $null
    try {
        $place = "$releases/latest/download"
        $Version = $Version -replace '^v', ''
        if ($Version) { $place = "$releases/download/v$Version" }
        $sums = Join-Path $work 'SHA256SUMS'
        Invoke-WebRequest -UseBasicParsing -Uri "$place/SHA256SUMS" -OutFile $sums
        $line = '^([0-9a-f]{64})  (kiln-([0-9][^ /]*)-(x86_64-pc-windows-(?:msvc|gnu))\.zip)$'
        $archives = @([IO.File]::ReadAllLines($sums) | Where-Object { $_ -match $line } | Sort-Object { $_ -notmatch 'msvc' })
        if ($archives.Count -eq 0) { throw "$place has no archive for Windows" }
        $archives[0] -match $line | Out-Null
        $expected, $archive, $found = $Matches[1], $Matches[2], $Matches[3]
        if ($Version -and $Version -ne $found) { throw "$place has version $found" }
        Write-Host "kiln $found for Windows"
        $file = Join-Path $work $archive
        Invoke-WebRequest -UseBasicParsing -Uri "$place/$archive" -OutFile $file
        $actual = (Get-FileHash -LiteralPath $file -Algorithm SHA256).Hash.ToLowerInvariant()
        if ($actual -ne $expected) {
            throw "the SHA-256 of $archive is $actual, and SHA256SUMS has $expected; nothing was installed"
        }
        Expand-Archive -LiteralPath $file -DestinationPath (Join-Path $work 'files')
        $files = Join-Path (Join-Path $work 'files') ($archive -replace '\.zip$', '')

        Add-KilnFolder -Path $folder -Made $made
        Add-KilnFolder -Path $data -Made $made
        $new = Join-Path $folder ("kiln.$PID.exe")
        Copy-Item -LiteralPath (Join-Path $files 'kiln.exe') -Destination $new
        $said = (& $new -V 2>&1 | Out-String).Trim()
        if ($said -ne "kiln $found") { throw "the program does not run here: it prints `"$said`"" }
        if (Test-Path -LiteralPath $program) {
            # A running program keeps its file under another name.
            $old = Join-Path $folder 'kiln.old.exe'
            if (Test-Path -LiteralPath $old) { Remove-Item -LiteralPath $old -Force }
            Move-Item -LiteralPath $program -Destination $old
        }
        Move-Item -LiteralPath $new -Destination $program
        $places = @($program)
        foreach ($name in 'completions\_kiln.ps1', 'LICENSE-APACHE', 'LICENSE-MIT', 'THIRD-PARTY-LICENSES.txt') {
            $copy = Join-Path $data (Split-Path -Leaf $name)
            Copy-Item -LiteralPath (Join-Path $files $name) -Destination $copy -Force
            $places += $copy
        }
        foreach ($path in $places) { if (-not $made.Contains($path)) { $made.Add($path) } }
        # `kiln self update` reads the receipt.
        $text = [ordered]@{ version = $found; program = $program; source = $releases; archive = $archive } | ConvertTo-Json
        [IO.File]::WriteAllText($receipt, $text, $utf8)
        Write-Host "$program is installed"
        if ($ModifyPath) {
            if (Set-KilnPath -Folder $folder -Remove $false) { [IO.File]::AppendAllText((Join-Path $data 'path.txt'), "$folder`n", $utf8) }
        }
        elseif (($env:PATH -split ';') -notcontains $folder) {
            Write-Host "$folder is not in PATH: run this script with -ModifyPath, or"
            Write-Host "  `$env:PATH += ';$folder'"
        }
        Write-Host "for completions add to your profile: . '$(Join-Path $data '_kiln.ps1')'"
        if (Test-Path -LiteralPath (Join-Path $env:SystemRoot 'System32\nvcuda.dll')) {
            $ErrorActionPreference = 'Continue' # In 5.1 a line on the error stream of a program is an error.
            $advice = @(& $program devices 2>$null | Where-Object { $_ -match 'pip install|pipx inject|uv tool' })
            if ($advice.Count -gt 0) {
                Write-Host "NVIDIA's driver is here, and libraries of CUDA are missing. ``kiln devices`` has:"
                $advice | ForEach-Object { Write-Host $_ }
            }
        }
        Write-Host 'a first image: kiln txt2img "a red apple"'
    }
    finally {
        if ($made.Contains($program)) { [IO.File]::WriteAllLines($list, $made, $utf8) }
        elseif (-not (Test-Path -LiteralPath $list)) {
            if ($new -and (Test-Path -LiteralPath $new)) { Remove-Item -LiteralPath $new -Force }
            for ($i = $made.Count - 1; $i -ge 0; $i--) {
                if (-not (Get-ChildItem -LiteralPath $made[$i] -Force)) { Remove-Item -LiteralPath $made[$i] -Force }
            }
        }
        if ($new -and (Test-Path -LiteralPath $new)) { Remove-Item -LiteralPath $new -Force }
        Remove-Item -LiteralPath $work -Recurse -Force
    }
}

# Makes a folder, and notes those that were missing.
function Add-KilnFolder {
    param([string]$Path, [System.Collections.Generic.List[string]]$Made)
    if (Test-Path -LiteralPath $Path) { return }
    $parent = Split-Path -Parent $Path
    if ($parent) { Add-KilnFolder -Path $parent -Made $Made }
    New-Item -ItemType Directory -Path $Path | Out-Null
    $Made.Add($Path)
}

# Adds a folder to the user's PATH, or removes it. Whether PATH changed.
function Set-KilnPath {
    param([string]$Folder, [bool]$Remove)
    $key = [Microsoft.Win32.Registry]::CurrentUser.OpenSubKey('Environment', $true)
    try {
        # Without its variables replaced.
        $path = [string]$key.GetValue('Path', '', 'DoNotExpandEnvironmentNames')
        $parts = @($path -split ';' | Where-Object { $_ -and $_ -ne $Folder })
        if (-not $Remove) {
            if (@($path -split ';') -contains $Folder) { return $false }
            $parts += $Folder
        }
        $changed = $parts -join ';'
        if ($changed -ne $path) {
            $key.SetValue('Path', $changed, 'ExpandString')
            # Notifies running programs, and so new shells, that the variables changed.
            [Environment]::SetEnvironmentVariable('KILN_PATH_CHANGED', '1', 'User')
            [Environment]::SetEnvironmentVariable('KILN_PATH_CHANGED', $null, 'User')
            if (-not $Remove) { Write-Host "$Folder is in PATH of new shells" }
        }
        $changed -ne $path
    }
    finally { $key.Close() }
}

Install-Kiln -Version $Version -Force $Force.IsPresent -ModifyPath $ModifyPath.IsPresent -Uninstall $Uninstall.IsPresent
